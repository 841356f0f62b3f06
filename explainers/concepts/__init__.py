"""What a unit, a direction or a class responds to, parts that a layer represents, and names that are tested.

`index_units` finds the images to which the channels of a layer respond, `name_units` names them with a test on other
images. `feature_visualization` creates images, `find_concepts` decomposes the features of many images, and `tcav` tests
a concept that is given by example images.
"""
