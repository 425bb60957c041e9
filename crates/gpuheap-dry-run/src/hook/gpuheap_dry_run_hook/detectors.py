"""Bounds the counts of boxes in torchvision's detectors.

In training, a detector samples at most `batch_size_per_image` boxes of each image. At most
`positive_fraction` of these boxes hit an object. So a count of boxes is smaller than the tensor in
which the boxes are counted.
"""

import os

from .lines import variables

FOLDER = os.path.join("torchvision", "models", "detection")
HEADS = os.path.join(FOLDER, "roi_heads.py")
PROPOSALS = os.path.join(FOLDER, "rpn.py")


def count_in_detector(frame, bound):
    """Returns the largest count that the code of `frame` may find, at most `bound`."""
    most = most_boxes(frame) if frame is not None else None
    return bound if most is None else min(bound, most)


def most_boxes(frame):
    """Returns the largest number of boxes that a sampler keeps; None outside of detectors."""
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    if file.endswith(PROPOSALS) and function == "compute_loss":
        return sampled(frame) * len(variables(frame)["labels"])
    if not file.endswith(HEADS):
        return None
    if function == "subsample":
        return sampled(frame)
    if function == "forward":
        return hits(frame)
    if function == "fastrcnn_loss":
        return hits(frame.f_back) * len(variables(frame.f_back)["labels"])
    return None


def sampled(frame):
    return variables(frame)["self"].fg_bg_sampler.batch_size_per_image


def hits(frame):
    """Returns the largest number of sampled boxes of one image that may hit an object."""
    sampler = variables(frame)["self"].fg_bg_sampler
    return int(sampler.batch_size_per_image * sampler.positive_fraction)
