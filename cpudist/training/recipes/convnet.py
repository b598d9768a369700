"""A small convolutional classifier of images, as a transformers model that is saved, loaded and resumed like any other.

Import this module before you load such a model: that registers the model type "cpudist_convnet".
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention


class ConvnetConfig(PretrainedConfig):  # type: ignore[misc]
    """The configuration of the net. Each stage has twice the channels of the one before it, at half the resolution.

    Args:
        image_size: pixels a side.
        num_channels: of the images.
        width: channels of the first stage.
        stages: their number; None: as many as leave 2 to 4 pixels a side to average over, at most 4.
    """

    model_type = "cpudist_convnet"

    def __init__(
        self, image_size: int = 32, num_channels: int = 3, width: int = 32, stages: int | None = None, **kwargs: Any
    ) -> None:
        self.image_size, self.num_channels, self.width = image_size, num_channels, width
        self.stages = stages or min(4, max(1, round(math.log2(image_size / 2))))
        super().__init__(**kwargs)


class ConvnetForImageClassification(PreTrainedModel):  # type: ignore[misc]
    """Stages of two convolutions, the mean over the remaining pixels, and a linear layer.

    The normalization is by groups of channels: statistics of a batch would differ between ranks, and with its size.
    """

    config_class = ConvnetConfig
    main_input_name = "pixel_values"

    def __init__(self, config: ConvnetConfig) -> None:
        super().__init__(config)
        widths = [config.num_channels, *(config.width * 2**stage for stage in range(config.stages))]
        self.features = nn.Sequential(
            *(_stage(before, after) for before, after in pairwise(widths)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(widths[-1], config.num_labels)
        self.post_init()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ImageClassifierOutputWithNoAttention:
        """Compute the logits, shape (batch, classes), of pixels, shape (batch, channels, height, width).

        With `labels`, class ids of shape (batch,), also the mean cross entropy.
        """
        logits = self.classifier(self.features(pixel_values))
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return ImageClassifierOutputWithNoAttention(loss=loss, logits=logits)

    def _init_weights(self, module: nn.Module) -> None:
        # With functions of nn.init, which transformers disables for weights that it has loaded.
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def _stage(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(*_convolution(before, after), *_convolution(after, after), nn.MaxPool2d(2))


def _convolution(before: int, after: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
    return convolution, nn.GroupNorm(math.gcd(8, after), after), nn.ReLU()


AutoConfig.register(ConvnetConfig.model_type, ConvnetConfig)
AutoModelForImageClassification.register(ConvnetConfig, ConvnetForImageClassification)
