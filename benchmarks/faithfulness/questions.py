"""The question that each method answers."""

QUESTIONS = {
    "Where at the layer is evidence for the class?": (
        "grad_cam grad_cam_pp hires_cam element_wise_grad_cam layer_cam xgrad_cam smooth_grad_cam_pp shapley_cam cam "
        "eigen_grad_cam seg_eigen_cam refine_cam sess le_grad grad_eclip transformer_attribution"
    ),
    "Where is evidence for this class and against the most similar classes?": "finer_cam",
    "Which positions have strong features at the layer, for any class?": (
        "eigen_cam kpca_cam fem deep_feature_factorization feature_maps token_pca"
    ),
    "Which channels does the class score need, and where are they active?": "ablation_cam score_cam ss_cam is_cam",
    "How much does the score change without each channel?": "channel_effects",
    "Which patches attend to which, for any class?": "attention_heads attention_rollout",
    "Which pixels change the score most if they change a little?": (
        "saliency smooth_grad smooth_grad_squared var_grad forgrad"
    ),
    "How much does each pixel add to the score, compared with a baseline or zero?": (
        "input_x_gradient integrated_gradients blur_integrated_gradients gradient_shap guided_integrated_gradients "
        "deep_lift deep_lift_shap lrp attn_lrp cp_lrp full_grad"
    ),
    "How much does each unit of a layer add to the score?": (
        "layer_integrated_gradients internal_influence layer_conductance"
    ),
    "Which regions have the most attribution for their size?": "xrai",
    "Which pixels does a positive signal from the class reach in the backward pass?": (
        "guided_backprop deconvnet excitation_backprop guided_grad_cam"
    ),
    "How much does the score drop if a part of the image is covered?": "occlusion feature_ablation",
    "Which regions raise the score when they are visible?": "rise d_rise mc_rise vit_cx",
    "How much does each part add, individually and with others?": "lime kernel_shap shapley_sampling",
    "Which parts does the score depend on, in either direction?": "sobol hsic",
    "Which region of a given size keeps the score highest?": "extremal_perturbation",
    "Which parts does the prediction need?": "rex",
    "What does a map reach that does not depend on the network?": "random_control edge_control center_control",
}
"""Methods by question; each method appears once."""


def question(method: str) -> str:
    """Return the question of a method."""
    return next(text for text, names in QUESTIONS.items() if method in names.split())
