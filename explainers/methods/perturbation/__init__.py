"""Methods that perturb the image and measure the score: occlusion, random masks, surrogates, sensitivity indices."""
