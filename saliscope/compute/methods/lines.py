"""The methods in the picker: their group, a one-line description for beginners, and additional search keywords."""

from __future__ import annotations

WHERE, PIXELS, COVERED, FEATURES, CONTROLS = "where", "pixels", "covered", "features", "controls"

GROUP_TITLES = {
    WHERE: "Where does the model look?",
    PIXELS: "Which pixels matter?",
    COVERED: "What if parts are occluded?",
    FEATURES: "Which features are active?",
    CONTROLS: "Controls",
}
"""The titles of the groups, in display order."""

FAMILIES = {
    "cam": WHERE,
    "attention": WHERE,
    "gradient": PIXELS,
    "backward rule": PIXELS,
    "perturbation": COVERED,
    "features": FEATURES,
    "control": CONTROLS,
}
"""The group of a method that is not listed below, by its family."""

LINES = {
    WHERE: {
        "grad_cam": (
            "Regions with evidence for the class. Start here.",
            "gradient class activation map heatmap default",
        ),
        "grad_cam_pp": ("Grad-CAM for several objects of one class.", "gradcampp plus plus instances"),
        "hires_cam": ("The exact contribution of each cell to the score.", "high resolution faithful exact"),
        "element_wise_grad_cam": ("HiResCAM with positive evidence only.", "elementwise positive"),
        "layer_cam": ("Grad-CAM that is also sharp at early layers.", "early layers detail fine"),
        "xgrad_cam": ("Grad-CAM with weights that match the score better.", "axiom axiomatic"),
        "smooth_grad_cam_pp": (
            "Grad-CAM++ averaged over noisy copies of the image.",
            "smoothgradcampp noise average",
        ),
        "shapley_cam": ("Grad-CAM with a second-order correction.", "shapley hessian second order"),
        "finer_cam": (
            "Evidence that separates the class from similar classes.",
            "difference similar fine grained contrast compare",
        ),
        "cam": ("The original CAM: class weights of the last layer.", "class activation mapping original"),
        "eigen_cam": ("The dominant pattern at the layer, class-agnostic.", "principal component pca class-free"),
        "eigen_grad_cam": ("Eigen-CAM for a class, using its gradients.", "principal component pca"),
        "seg_eigen_cam": ("Eigen-CAM weighted by gradient magnitude.", "principal component pca segmentation"),
        "kpca_cam": ("Eigen-CAM with kernel PCA, class-agnostic.", "kernel principal component pca"),
        "fem": ("Unusually strong activations, class-agnostic.", "feature explanation method threshold"),
        "ablation_cam": ("Removes channels and measures the drop of the score.", "remove channels gradient-free"),
        "score_cam": ("Masks the image with each channel and scores the result.", "scorecam gradient-free mask"),
        "ss_cam": ("Score-CAM averaged over noise.", "smoothed score cam gradient-free"),
        "is_cam": ("Score-CAM averaged over masks that fade in.", "integrated score cam gradient-free"),
        "refine_cam": (
            "Product of maps from several layers, with fine detail.",
            "refine multi layer fusion sharp",
        ),
        "sess": ("Combines maps of many image windows.", "sliding windows scale small things"),
        "attention_rollout": (
            "Attention of a transformer over all layers, class-agnostic.",
            "transformer vit",
        ),
        "transformer_attribution": ("Class-specific relevance of a transformer's attention.", "vit chefer relevance"),
        "le_grad": ("Gradient of the class score with respect to attention.", "vit legrad gradient"),
        "grad_eclip": ("Gradient and values of the last attention.", "vit clip eclip text sentence gradient"),
    },
    PIXELS: {
        "smooth_grad": (
            "Saliency averaged over noisy copies of the image.",
            "smoothgrad noise average gradient",
        ),
        "gradient_shap": (
            "Contribution of each pixel, averaged over random baselines.",
            "expected gradients shapley",
        ),
        "lrp": ("Propagates the score back through the layers to the pixels.", "layer-wise relevance propagation"),
        "attn_lrp": ("LRP through the attention of a transformer.", "attnlrp transformer vit layer-wise relevance"),
        "cp_lrp": ("LRP with constant attention weights.", "transformer vit conservative propagation relevance"),
        "deep_lift": ("Contributions compared with a blank image.", "deeplift baseline rescale"),
        "deep_lift_shap": ("DeepLIFT averaged over many baselines.", "deepliftshap deepshap shapley"),
        "guided_grad_cam": ("Fine edges inside the region of Grad-CAM.", "guided gradcam edges detail"),
        "full_grad": ("Gradients of the image and of the biases of all layers.", "fullgrad full gradient bias"),
        "xrai": ("Regions ranked by their attribution.", "regions segments superpixels"),
        "integrated_gradients": (
            "Contribution of each pixel, compared with a blank image.",
            "ig path baseline axiomatic",
        ),
        "guided_integrated_gradients": ("Integrated gradients along a path with less noise.", "guided ig path"),
        "blur_integrated_gradients": ("Integrated gradients from a blurred image.", "blur ig path scale"),
        "forgrad": ("Gradients without checkerboard artifacts.", "filter low-pass frequency checkerboard"),
        "smooth_grad_squared": ("SmoothGrad with squared gradients, unsigned.", "smoothgrad squared noise"),
        "var_grad": ("Variance of the gradient under noise.", "vargrad variance noise"),
        "excitation_backprop": ("Winner-take-all backpropagation from class to pixels.", "probability top-down"),
        "guided_backprop": ("Sharp edges that hardly depend on the class.", "guided backpropagation"),
        "input_x_gradient": ("Gradient times pixel value: fast and noisy.", "input times gradient attribution"),
        "saliency": ("The plain gradient: fast and noisy.", "vanilla gradient backprop"),
        "deconvnet": ("Sharp edges with stride artifacts.", "deconvolution"),
    },
    COVERED: {
        "occlusion": (
            "Slides a patch over the image and measures the drop of the score.",
            "sliding window gray patch cover",
        ),
        "rise": ("Averages hundreds of random masks, weighted by their score.", "randomized masks black box"),
        "feature_ablation": ("Occludes one region at a time.", "superpixels segments remove"),
        "lime": ("Occludes random regions and fits a linear model.", "local interpretable surrogate superpixels"),
        "kernel_shap": ("Shapley values of regions by regression.", "shapley values kernelshap regression"),
        "shapley_sampling": ("Shapley values of regions by sampling permutations.", "shapley values permutation"),
        "extremal_perturbation": ("The smallest part that keeps the score high.", "mask optimization meaningful"),
        "mc_rise": ("RISE with recoloring instead of masking.", "color random masks black box"),
        "vit_cx": ("Masks from clusters of the layer's channels.", "vision transformer causal patches clusters"),
        "d_rise": ("RISE for one object of a detector.", "detection detr yolo random masks black box"),
        "sobol": ("Share of the variance of the score caused by each cell.", "variance sensitivity total order"),
        "hsic": ("Statistical dependence of the score on each cell.", "dependence kernel independence"),
        "rex": ("The parts without which the prediction changes.", "causal responsibility sufficient minimal"),
    },
    FEATURES: {
        "feature_maps": ("The activation of each channel of the layer.", "activations channels filters"),
        "deep_feature_factorization": ("Splits the layer into a few concepts.", "dff nmf concepts parts"),
        "token_pca": ("The principal components of the layer.", "principal components dino tokens"),
        "attention_heads": ("The attention of each head of a transformer block.", "vit heads transformer dino"),
        "layer_conductance": ("How much of the score flows through each unit of the layer.", "conductance neurons"),
        "layer_integrated_gradients": ("Contribution of each unit of the layer to the score.", "ig neurons"),
        "internal_influence": ("Influence of each unit of the layer on the score.", "influence neurons gradient"),
        "channel_effects": ("Drop of the score when each channel is removed.", "ablation causal zero"),
    },
    CONTROLS: {
        "edge_control": ("Only the edges of the image: a real map should differ.", "sobel sanity baseline"),
        "center_control": (
            "Only a blob in the center: a real map should do better.",
            "center gaussian sanity baseline",
        ),
        "random_control": ("Only noise: a real map should do better.", "sanity baseline"),
    },
}
"""By group and method, in display order: the description, and search keywords in addition to title and name."""
