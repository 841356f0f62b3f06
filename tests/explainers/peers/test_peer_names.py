"""Every method of another library is here, by the same name or by one that is stated, or is a stated gap."""

from __future__ import annotations

import inspect

import pytest

import explainers
from explainers import METHODS

# Names are those of captum 0.9, grad-cam 1.5, torchcam 0.5, zennit 0.5 and saliency 0.2. Xplique, which needs
# TensorFlow, has no method that these do not have.
NEURON = "unit(...) as target of the method"
LAYERS = "gap: attributions of hidden layers are only offered for integrated gradients, conductance and influence"
OTHER_NAMES: dict[str, dict[str, str]] = {
    "pytorch_grad_cam": {
        "GradCAMElementWise": "element_wise_grad_cam",
        "GradCAMPlusPlus": "grad_cam_pp",
        "GuidedBackpropReLUModel": "guided_backprop",
        "RandomCAM": "random_control",
    },
    "torchcam.methods": {},
    "captum.attr": {
        "Deconvolution": "deconvnet",
        "FeaturePermutation": "gap: it mixes the images of a batch, so the map of an image depends on the others",
        "ShapleyValueSampling": "shapley_sampling",
        "ShapleyValues": "shapley_sampling",
        "NoiseTunnel": "smooth(...)",
        "LayerGradientXActivation": "hires_cam",
        "LayerActivation": "feature_maps",
        "LayerGradCam": "grad_cam",
        "LayerFeatureAblation": "channel_effects",
        "LayerFeaturePermutation": "gap: as FeaturePermutation",
        "NeuronConductance": "gap: unit(...) is a target of input attributions, and conductance is one of a layer",
        **dict.fromkeys(("LayerDeepLift", "LayerDeepLiftShap", "LayerGradientShap", "LayerLRP"), LAYERS),
        **dict.fromkeys(("NeuronFeatureAblation", "NeuronGradient", "NeuronIntegratedGradients"), NEURON),
        **dict.fromkeys(("NeuronDeepLift", "NeuronDeepLiftShap", "NeuronGradientShap"), NEURON),
        **dict.fromkeys(("NeuronDeconvolution", "NeuronGuidedBackprop"), NEURON),
    },
    "saliency.core": {
        "BlurIG": "blur_integrated_gradients",
        "GradientSaliency": "saliency",
        "GuidedIG": "guided_integrated_gradients",
    },
    "zennit.composites": {
        "BetaSmooth": "gap: ReLUs made smooth; a separate composite would be needed",
        **dict.fromkeys(("EpsilonAlpha2Beta1", "EpsilonAlpha2Beta1Flat", "EpsilonGammaBox"), "lrp"),
        **dict.fromkeys(("EpsilonPlus", "EpsilonPlusFlat"), "lrp"),
    },
    "zennit.attribution": {"Gradient": "saliency"},
}
NO_EXPLAINERS = """
AblationLayer AblationLayerFasterRCNN AblationLayerVit ActivationsAndGradients OutputTarget Attributor
Attribution GradientAttribution PerturbationAttribution NeuronAttribution LayerAttribution LimeBase
DataLoaderAttribution LLMAttribution LLMAttributionResult LLMGradientAttribution RemoteLLMAttribution RemoteLLMProvider
VLLMProvider InterpretableInput ProductBaselines ImageMaskInput TextTemplateInput InterpretableEmbeddingBase
TextTokenInput TokenReferenceBase Summarizer CommonStats ClassSummarizer Mean StdDev MSE Var Min Max Sum Count StatValue
SummarizerSingleTensor CoreSaliency XRAIOutput XRAIParameters LayerMapComposite MixedComposite NameLayerMapComposite
NameMapComposite SpecialFirstLayerMapComposite
"""
"""Public classes of these packages that explain nothing by themselves, or are for text."""


def test_other_names_are_of_public_functions_or_stated_gaps():
    for library, names in OTHER_NAMES.items():
        for name, ours in names.items():
            is_offered = ours in METHODS or hasattr(explainers, ours.partition("(")[0])
            assert is_offered or (ours.startswith("gap: ") and len(ours) > 20), f"{library}: {name} gives no reason"


@pytest.mark.parametrize("library", OTHER_NAMES)
def test_every_method_of_the_installed_library_is_here_or_a_stated_gap(library):
    module = pytest.importorskip(library)
    package = library.partition(".")[0]
    offered = {
        name
        for name, value in inspect.getmembers(module, inspect.isclass)
        if not name.startswith("_") and value.__module__.startswith(package)
    }
    if library == "zennit.composites":
        offered = {name for name in offered if getattr(module, name).__module__ == library}
    same = {name.replace("_", "") for name in METHODS}
    missing = {name for name in offered if name.lower().replace("_", "") not in same}
    assert missing <= {*OTHER_NAMES[library], *NO_EXPLAINERS.split()}, f"{package} has new methods"
