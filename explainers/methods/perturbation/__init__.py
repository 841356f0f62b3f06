"""Methods that change the picture and watch the score: occlusion, random masks, surrogates, sensitivity indices."""
