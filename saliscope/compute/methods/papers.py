"""The papers of the methods as BibTeX. `Method.paper` names them by an arXiv number, a DOI, or authors and year."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explainers import Method

ARXIV = {
    "1311.2901": (2014, "Zeiler, Matthew D.; Fergus, Rob", "Visualizing and Understanding Convolutional Networks"),
    "1312.6034": (
        2013,
        "Simonyan, Karen; Vedaldi, Andrea; Zisserman, Andrew",
        "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
    ),
    "1412.6806": (
        2014,
        "Springenberg, Jost Tobias; Dosovitskiy, Alexey; Brox, Thomas; Riedmiller, Martin",
        "Striving for Simplicity: The All Convolutional Net",
    ),
    "1512.04150": (
        2016,
        "Zhou, Bolei; Khosla, Aditya; Lapedriza, Agata; Oliva, Aude; Torralba, Antonio",
        "Learning Deep Features for Discriminative Localization",
    ),
    "1602.04938": (
        2016,
        "Ribeiro, Marco Tulio; Singh, Sameer; Guestrin, Carlos",
        '"Why Should I Trust You?": Explaining the Predictions of Any Classifier',
    ),
    "1605.01713": (
        2016,
        "Shrikumar, Avanti; Greenside, Peyton; Shcherbina, Anna; Kundaje, Anshul",
        "Not Just a Black Box: Learning Important Features Through Propagating Activation Differences",
    ),
    "1608.00507": (
        2016,
        "Zhang, Jianming; Lin, Zhe; Brandt, Jonathan; Shen, Xiaohui; Sclaroff, Stan",
        "Top-down Neural Attention by Excitation Backprop",
    ),
    "1610.02391": (
        2017,
        "Selvaraju, Ramprasaath R.; Cogswell, Michael; Das, Abhishek; Vedantam, Ramakrishna; Parikh, Devi; "
        "Batra, Dhruv",
        "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
    ),
    "1703.01365": (
        2017,
        "Sundararajan, Mukund; Taly, Ankur; Yan, Qiqi",
        "Axiomatic Attribution for Deep Networks",
    ),
    "1704.02685": (
        2017,
        "Shrikumar, Avanti; Greenside, Peyton; Kundaje, Anshul",
        "Learning Important Features Through Propagating Activation Differences",
    ),
    "1705.07874": (2017, "Lundberg, Scott; Lee, Su-In", "A Unified Approach to Interpreting Model Predictions"),
    "1706.03825": (
        2017,
        "Smilkov, Daniel; Thorat, Nikhil; Kim, Been; Viégas, Fernanda; Wattenberg, Martin",
        "SmoothGrad: removing noise by adding noise",
    ),
    "1710.11063": (
        2018,
        "Chattopadhay, Aditya; Sarkar, Anirban; Howlader, Prantik; Balasubramanian, Vineeth N.",
        "Grad-CAM++: Improved Visual Explanations for Deep Convolutional Networks",
    ),
    "1802.03788": (
        2018,
        "Leino, Klas; Sen, Shayak; Datta, Anupam; Fredrikson, Matt; Li, Linyi",
        "Influence-Directed Explanations for Deep Convolutional Networks",
    ),
    "1803.06959": (
        2018,
        "Morcos, Ari S.; Barrett, David G. T.; Rabinowitz, Neil C.; Botvinick, Matthew",
        "On the importance of single directions for generalization",
    ),
    "1805.12233": (
        2018,
        "Dhamdhere, Kedar; Sundararajan, Mukund; Yan, Qiqi",
        "How Important Is a Neuron?",
    ),
    "1806.07421": (
        2018,
        "Petsiuk, Vitali; Das, Abir; Saenko, Kate",
        "RISE: Randomized Input Sampling for Explanation of Black-box Models",
    ),
    "1806.10206": (
        2018,
        "Collins, Edo; Achanta, Radhakrishna; Süsstrunk, Sabine",
        "Deep Feature Factorization For Concept Discovery",
    ),
    "1806.10758": (
        2019,
        "Hooker, Sara; Erhan, Dumitru; Kindermans, Pieter-Jan; Kim, Been",
        "A Benchmark for Interpretability Methods in Deep Neural Networks",
    ),
    "1810.03292": (
        2018,
        "Adebayo, Julius; Gilmer, Justin; Muelly, Michael; Goodfellow, Ian; Hardt, Moritz; Kim, Been",
        "Sanity Checks for Saliency Maps",
    ),
    "1810.03307": (
        2018,
        "Adebayo, Julius; Gilmer, Justin; Goodfellow, Ian; Kim, Been",
        "Local Explanation Methods for Deep Neural Networks Lack Sensitivity to Parameter Values",
    ),
    "1905.00780": (
        2019,
        "Srinivas, Suraj; Fleuret, François",
        "Full-Gradient Representation for Neural Network Visualization",
    ),
    "1906.02825": (
        2019,
        "Kapishnikov, Andrei; Bolukbasi, Tolga; Viégas, Fernanda; Terry, Michael",
        "XRAI: Better Attributions Through Regions",
    ),
    "1908.01224": (
        2019,
        "Omeiza, Daniel; Speakman, Skyler; Cintas, Celia; Weldermariam, Komminist",
        "Smooth Grad-CAM++: An Enhanced Inference Level Visualization Technique for Deep Convolutional Neural Network "
        "Models",
    ),
    "1910.01279": (
        2020,
        "Wang, Haofan; Wang, Zifan; Du, Mengnan; Yang, Fan; Zhang, Zijian; Ding, Sirui; Mardziel, Piotr; Hu, Xia",
        "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks",
    ),
    "1910.08485": (
        2019,
        "Fong, Ruth; Patrick, Mandela; Vedaldi, Andrea",
        "Understanding Deep Networks via Extremal Perturbations and Smooth Masks",
    ),
    "2004.03383": (
        2020,
        "Xu, Shawn; Venugopalan, Subhashini; Sundararajan, Mukund",
        "Attribution in Scale and Space",
    ),
    "2005.00928": (2020, "Abnar, Samira; Zuidema, Willem", "Quantifying Attention Flow in Transformers"),
    "2006.03204": (
        2021,
        "Petsiuk, Vitali; Jain, Rajiv; Manjunatha, Varun; Morariu, Vlad I.; Mehra, Ashutosh; Ordonez, Vicente; "
        "Saenko, Kate",
        "Black-box Explanation of Object Detectors via Saliency Maps",
    ),
    "2006.14255": (
        2020,
        "Wang, Haofan; Naidu, Rakshit; Michael, Joy; Kundu, Soumya Snigdha",
        "SS-CAM: Smoothed Score-CAM for Sharper Visual Feature Localization",
    ),
    "2008.00299": (
        2020,
        "Muhammad, Mohammed Bany; Yeasin, Mohammed",
        "Eigen-CAM: Class Activation Map using Principal Components",
    ),
    "2008.02312": (
        2020,
        "Fu, Ruigang; Hu, Qingyong; Dong, Xiaohu; Guo, Yulan; Gao, Yinghui; Li, Biao",
        "Axiom-based Grad-CAM: Towards Accurate Visualization and Explanation of CNNs",
    ),
    "2009.07896": (
        2020,
        "Kokhlikyan, Narine; Miglani, Vivek; Martin, Miguel; Wang, Edward; Alsallakh, Bilal; Reynolds, Jonathan; "
        "Melnikov, Alexander; Kliushkina, Natalia; Araya, Carlos; Yan, Siqi; Reblitz-Richardson, Orion",
        "Captum: A unified and generic model interpretability library for PyTorch",
    ),
    "2010.02468": (
        2020,
        "Hatakeyama, Yuhki; Sakuma, Hiroki; Konishi, Yoshinori; Suenaga, Kohei",
        "Visualizing Color-wise Saliency of Black-Box Image Classification Models",
    ),
    "2010.03023": (
        2020,
        "Naidu, Rakshit; Ghosh, Ankita; Maurya, Yash; K, Shamanth R Nayak; Kundu, Soumya Snigdha",
        "IS-CAM: Integrated Score-CAM for axiomatic-based explanations",
    ),
    "2011.08891": (
        2020,
        "Draelos, Rachel Lea; Carin, Lawrence",
        "Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks",
    ),
    "2103.15679": (
        2021,
        "Chefer, Hila; Gur, Shir; Wolf, Lior",
        "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
    ),
    "2104.14294": (
        2021,
        "Caron, Mathilde; Touvron, Hugo; Misra, Ishan; Jégou, Hervé; Mairal, Julien; Bojanowski, Piotr; Joulin, Armand",
        "Emerging Properties in Self-Supervised Vision Transformers",
    ),
    "2106.09788": (
        2021,
        "Kapishnikov, Andrei; Venugopalan, Subhashini; Avci, Besim; Wedin, Ben; Terry, Michael; Bolukbasi, Tolga",
        "Guided Integrated Gradients: An Adaptive Path Method for Removing Noise",
    ),
    "2111.04138": (
        2021,
        "Fel, Thomas; Cadène, Rémi; Chalvidal, Mathieu; Cord, Matthieu; Vigouroux, David; Serre, Thomas",
        "Look at the Variance! Efficient Black-box Explanations with Sobol-based Sensitivity Analysis",
    ),
    "2112.05814": (
        2021,
        "Amir, Shir; Gandelsman, Yossi; Bagon, Shai; Dekel, Tali",
        "Deep ViT Features as Dense Visual Descriptors",
    ),
    "2202.07304": (
        2022,
        "Ali, Ameen; Schnake, Thomas; Eberle, Oliver; Montavon, Grégoire; Müller, Klaus-Robert; Wolf, Lior",
        "XAI for Transformers: Better Explanations through Conservative Propagation",
    ),
    "2206.06219": (
        2022,
        "Novello, Paul; Fel, Thomas; Vigouroux, David",
        "Making Sense of Dependence: Efficient Black-box Explanations Using Dependence Measure",
    ),
    "2207.01769": (
        2022,
        "Tursun, Osman; Denman, Simon; Sridharan, Sridha; Fookes, Clinton",
        "SESS: Saliency Enhancing with Scaling and Sliding",
    ),
    "2211.03064": (
        2023,
        "Xie, Weiyan; Li, Xiao-Hui; Cao, Caleb Chen; Zhang, Nevin L.",
        "ViT-CX: Causal Explanation of Vision Transformers",
    ),
    "2307.09591": (
        2023,
        "Muzellec, Sabine; Fel, Thomas; Boutin, Victor; Andéol, Léo; VanRullen, Rufin; Serre, Thomas",
        "Saliency strikes back: How filtering out high frequencies improves white-box explanations",
    ),
    "2402.05602": (
        2024,
        "Achtibat, Reduan; Hatefi, Sayed Mohammad Vakilzadeh; Dreyer, Maximilian; Jain, Aakriti; Wiegand, Thomas; "
        "Lapuschkin, Sebastian; Samek, Wojciech",
        "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers",
    ),
    "2404.03214": (
        2024,
        "Bousselham, Walid; Boggust, Angie; Chaybouti, Sofian; Strobelt, Hendrik; Kuehne, Hilde",
        "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity",
    ),
    "2410.00267": (
        2024,
        "Karmani, Sachin; Sivakaran, Thanushon; Prasad, Gaurav; Ali, Mehmet; Yang, Wenbo; Tang, Sheyang",
        "KPCA-CAM: Visual Explainability of Deep Computer Vision Models using Kernel PCA",
    ),
    "2411.08875": (
        2024,
        "Chockler, Hana; Kelly, David A.; Kroening, Daniel; Sun, Youcheng",
        "Causal Explanations for Image Classifiers",
    ),
    "2501.06261": (2025, "Cai, Huaiguang", "CAMs as Shapley Value-based Explainers"),
    "2501.11309": (
        2025,
        "Zhang, Ziheng; Gu, Jianyang; Chowdhury, Arpita; Mai, Zheda; Carlyn, David; Berger-Wolf, Tanya; Su, Yu; "
        "Chao, Wei-Lun",
        "Finer-CAM: Spotting the Difference Reveals Finer Details for Visual Explanation",
    ),
    "2502.18816": (
        2025,
        "Zhao, Chenyang; Wang, Kun; Hsiao, Janet H.; Chan, Antoni B.",
        "Grad-ECLIP: Gradient-based Visual and Textual Explanations for CLIP",
    ),
    "2605.14641": (
        2026,
        "Domeniconi, Luca; Stramiglio, Alessandra; Lombardi, Michele; Salti, Samuele",
        "How to Evaluate and Refine your CAM",
    ),
}
"""Year, authors and title by arXiv number."""

OTHERS = {
    "10.1371/journal.pone.0130140": {
        "author": "Bach, Sebastian; Binder, Alexander; Montavon, Grégoire; Klauschen, Frederick; "
        "Müller, Klaus-Robert; Samek, Wojciech",
        "title": "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation",
        "journal": "PLOS ONE",
        "volume": "10",
        "number": "7",
        "pages": "e0130140",
        "year": "2015",
        "doi": "10.1371/journal.pone.0130140",
    },
    "10.1016/j.cor.2008.04.004": {
        "author": "Castro, Javier; Gómez, Daniel; Tejada, Juan",
        "title": "Polynomial calculation of the Shapley value based on sampling",
        "journal": "Computers & Operations Research",
        "volume": "36",
        "number": "5",
        "pages": "1726--1730",
        "year": "2009",
        "doi": "10.1016/j.cor.2008.04.004",
    },
    "10.3390/app15137562": {
        "author": "Chung, Ching-Ting; Ying, Josh Jia-Ching",
        "title": "Seg-Eigen-CAM: Eigen-Value-Based Visual Explanations for Semantic Segmentation Models",
        "journal": "Applied Sciences",
        "volume": "15",
        "number": "13",
        "pages": "7562",
        "year": "2025",
        "doi": "10.3390/app15137562",
    },
    "Jiang et al. 2021": {
        "author": "Jiang, Peng-Tao; Zhang, Chang-Bin; Hou, Qibin; Cheng, Ming-Ming; Wei, Yunchao",
        "title": "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization",
        "journal": "IEEE Transactions on Image Processing",
        "volume": "30",
        "pages": "5875--5888",
        "year": "2021",
        "doi": "10.1109/TIP.2021.3089943",
    },
    "Desai & Ramaswamy 2020": {
        "author": "Desai, Saurabh; Ramaswamy, Harish G.",
        "title": "Ablation-CAM: Visual Explanations for Deep Convolutional Network via Gradient-free Localization",
        "booktitle": "IEEE Winter Conference on Applications of Computer Vision (WACV)",
        "year": "2020",
        "doi": "10.1109/WACV45572.2020.9093360",
    },
    "Fuad et al. 2020": {
        "author": "Fuad, Kazi Ahmed Asif; Martin, Pierre-Etienne; Giot, Romain; Bourqui, Romain; "
        "Benois-Pineau, Jenny; Zemmari, Akka",
        "title": "Features Understanding in 3D CNNs for Actions Recognition in Video",
        "year": "2020",
        "url": "https://hal.science/hal-02963298",
    },
    "Gildenblat 2021": {
        "author": "Gildenblat, Jacob; others",
        "title": "PyTorch library for CAM methods",
        "year": "2021",
        "url": "https://github.com/jacobgil/pytorch-grad-cam",
    },
}
"""Fields of the papers without an arXiv number, by DOI, or by authors and year."""
PLAIN = str.maketrans("éèüöäç", "eeuoac")


def bibtex(method: Method) -> str:
    """Return the BibTeX entries of the papers of a method, with an empty line between two; "" if none is known."""
    return "\n\n".join(entry for part in (method.paper or "").split(";") if (entry := _entry(part.strip())))


def _entry(paper: str) -> str:
    number = re.search(r"arXiv:(\d{4}\.\d{4,5})", paper)
    if number and number[1] in ARXIV:
        year, author, title = ARXIV[number[1]]
        fields = {"author": author, "title": title, "year": str(year)}
        return _format("misc", fields | {"eprint": number[1], "archivePrefix": "arXiv"})
    doi = re.search(r"doi:(\S+)", paper)
    other = OTHERS.get(doi[1]) if doi else OTHERS.get(paper.partition(",")[0])
    if other is None:
        return ""
    kind = "article" if "journal" in other else "inproceedings" if "booktitle" in other else "misc"
    return _format(kind, other)


def _format(kind: str, fields: dict[str, str]) -> str:
    """Return an entry. Titles are in double braces, so that BibTeX keeps their capitals."""
    author = fields["author"].replace("; ", " and ")
    family = re.sub(r"[^a-z]", "", author.partition(",")[0].lower().translate(PLAIN))
    word = re.sub(r"[^a-z]", "", fields["title"].split()[0].lower())
    escaped = {name: value.replace("&", r"\&") for name, value in (fields | {"author": author}).items()}
    escaped["title"] = f"{{{escaped['title']}}}"
    lines = [f"  {name} = {{{value}}}," for name, value in escaped.items()]
    return "\n".join([f"@{kind}{{{family}{fields['year']}{word},", *lines, "}"])
