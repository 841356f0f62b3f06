"""Every method of the picker: the question that it answers, a line for a newcomer, and further words to search by."""

from __future__ import annotations

WHERE, PIXELS, COVERED, FEATURES, CONTROLS = "where", "pixels", "covered", "features", "controls"

QUESTIONS = {
    WHERE: "Where did it look?",
    PIXELS: "Which pixels?",
    COVERED: "What if it were covered?",
    FEATURES: "Which features?",
    CONTROLS: "Controls",
}
"""The groups, in their order, by the question that their methods answer."""

FAMILIES = {
    "cam": WHERE,
    "attention": WHERE,
    "gradient": PIXELS,
    "backward rule": PIXELS,
    "perturbation": COVERED,
    "features": FEATURES,
    "control": CONTROLS,
}
"""The question of a method that is not listed below, by its family."""

LINES = {
    WHERE: {
        "grad_cam": (
            "The regions that speak for the class: start here.",
            "gradient class activation map heatmap default",
        ),
        "grad_cam_pp": ("As Grad-CAM, for several things of one class.", "gradcampp plus plus instances"),
        "hires_cam": ("What each cell really adds to the score, for and against.", "high resolution faithful exact"),
        "element_wise_grad_cam": ("As HiResCAM, but only what speaks for the class.", "elementwise positive"),
        "layer_cam": ("As Grad-CAM, but sharp at early layers too.", "early layers detail fine"),
        "xgrad_cam": ("Grad-CAM with weights that match the score better.", "axiom axiomatic"),
        "smooth_grad_cam_pp": (
            "Grad-CAM++ averaged over noisy copies of the picture.",
            "smoothgradcampp noise average",
        ),
        "shapley_cam": ("Grad-CAM with a correction for a curved score.", "shapley hessian second order"),
        "finer_cam": (
            "What tells the class from those most like it.",
            "difference similar fine grained contrast compare",
        ),
        "cam": ("The classic: class weights of the last layer, for and against.", "class activation mapping original"),
        "eigen_cam": ("What stands out at the layer, whatever the class.", "principal component pca class-free"),
        "eigen_grad_cam": ("Eigen-CAM for a class, by its gradients.", "principal component pca"),
        "seg_eigen_cam": ("Eigen-CAM weighted by the gradient's size.", "principal component pca segmentation"),
        "kpca_cam": ("Eigen-CAM with curved components, whatever the class.", "kernel principal component pca"),
        "fem": ("Unusually strong activations, whatever the class.", "feature explanation method threshold"),
        "ablation_cam": ("Switches channels off, and sees what the score loses.", "remove channels gradient-free"),
        "score_cam": ("Shows the picture through each channel, and scores it.", "scorecam gradient-free mask"),
        "ss_cam": ("Score-CAM averaged over noise.", "smoothed score cam gradient-free"),
        "is_cam": ("Score-CAM averaged over a fade-in.", "integrated score cam gradient-free"),
        "refine_cam": (
            "Maps of several layers multiplied: class and detail in one.",
            "refine multi layer fusion sharp",
        ),
        "sess": ("A map for many windows of the picture, combined.", "sliding windows scale small things"),
        "attention_rollout": (
            "Which patches a transformer's attention mixes in, whatever the class.",
            "transformer vit",
        ),
        "transformer_attribution": ("A transformer's attention that speaks for the class.", "vit chefer relevance"),
        "le_grad": ("How the class's score pulls on a transformer's attention.", "vit legrad gradient"),
    },
    PIXELS: {
        "smooth_grad": (
            "Pixels that sway the score, with the noise averaged away.",
            "smoothgrad noise average gradient",
        ),
        "gradient_shap": (
            "Each pixel's share of the score, against many random pictures.",
            "expected gradients shapley",
        ),
        "lrp": ("Hands the score back, layer by layer, down to pixels.", "layer-wise relevance propagation"),
        "deep_lift": ("What the picture adds against a blank one, by differences.", "deeplift baseline rescale"),
        "deep_lift_shap": ("DeepLIFT averaged over many comparison pictures.", "deepliftshap deepshap shapley"),
        "guided_grad_cam": ("Fine edges inside the region that Grad-CAM finds.", "guided gradcam edges detail"),
        "full_grad": ("Gradients of the picture and of every layer's bias, added up.", "fullgrad full gradient bias"),
        "xrai": ("Whole regions, ranked by how much they explain.", "regions segments superpixels"),
        "integrated_gradients": (
            "Each pixel's share of the score, against a blank picture.",
            "ig path baseline axiomatic",
        ),
        "guided_integrated_gradients": ("Integrated gradients on a path with less noise.", "guided ig path"),
        "blur_integrated_gradients": ("Integrated gradients, from a blurred picture.", "blur ig path scale"),
        "forgrad": ("Gradients without the grid pattern of strides.", "filter low-pass frequency checkerboard"),
        "smooth_grad_squared": ("Pixels that sway the score, by squares: sign-free.", "smoothgrad squared noise"),
        "var_grad": ("Where noise makes the gradient waver most.", "vargrad variance noise"),
        "excitation_backprop": ("A winner-takes-all search from the class to pixels.", "probability top-down"),
        "guided_backprop": ("Crisp edges; they hardly depend on the class.", "guided backpropagation"),
        "input_x_gradient": ("Gradient times pixel: quick and noisy.", "input times gradient attribution"),
        "saliency": ("The plain gradient: quick and noisy.", "vanilla gradient backprop"),
        "deconvnet": ("Crisp edges, and patterns of the network's strides.", "deconvolution"),
    },
    COVERED: {
        "occlusion": (
            "Slides a patch over the picture, and sees what the score loses.",
            "sliding window grey patch cover",
        ),
        "rise": ("Hundreds of random covers: what is seen when the score is high?", "randomized masks black box"),
        "feature_ablation": ("Covers one region after the other.", "superpixels segments remove"),
        "lime": ("Covers regions at random, and fits a simple model.", "local interpretable surrogate superpixels"),
        "kernel_shap": ("Shares the score fairly among regions.", "shapley values kernelshap regression"),
        "shapley_sampling": ("Shares the score fairly among regions, in random order.", "shapley values permutation"),
        "extremal_perturbation": ("The smallest part that keeps the score high.", "mask optimisation meaningful"),
        "mc_rise": ("RISE that recolours instead of covering.", "colour random masks black box"),
        "d_rise": ("RISE for one object of a detector.", "detection detr yolo random masks black box"),
        "sobol": ("How much of the score's ups and downs a cell causes.", "variance sensitivity total order"),
        "hsic": ("Whether the score depends on a cell at all, in any way.", "dependence kernel independence"),
    },
    FEATURES: {
        "feature_maps": ("What each channel of the layer responds to.", "activations channels filters"),
        "deep_feature_factorization": ("Splits the layer into a few concepts.", "dff nmf concepts parts"),
        "token_pca": ("The main patterns of the layer, one by one.", "principal components dino tokens"),
        "attention_heads": ("Where each head of a transformer's block attends.", "vit heads transformer dino"),
        "layer_conductance": ("How much of the score flows through each unit of the layer.", "conductance neurons"),
        "layer_integrated_gradients": ("Each unit's share of the score at the layer.", "ig neurons"),
        "internal_influence": ("How strongly each unit of the layer sways the score.", "influence neurons gradient"),
        "channel_effects": ("What the score loses without each channel.", "ablation causal zero"),
    },
    CONTROLS: {
        "edge_control": ("Only the picture's edges: a real map should look different.", "sobel sanity baseline"),
        "centre_control": (
            "Only a blob in the middle: a real map should do better.",
            "center gaussian sanity baseline",
        ),
        "random_control": ("Only noise: a real map must do better.", "sanity baseline"),
    },
}
"""By question, then by method in the order of the list: its line, and words to search by besides title and name."""
