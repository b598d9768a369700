"""A small convolutional classifier of images, as a transformers model: saved, loaded and resumed like any other.

To load one elsewhere, import this module first: transformers then knows the model type "cpudist_convnet".
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention


class ConvnetConfig(PretrainedConfig):  # type: ignore[misc]
    """`width` channels in the first stage and twice as many in every other one, at half the resolution.

    Without `stages` there are as many as leave 2 to 4 pixels a side to average over, at most 4.
    """

    model_type = "cpudist_convnet"

    def __init__(
        self,
        image_size: int = 32,
        num_channels: int = 3,
        width: int = 32,
        stages: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.image_size = image_size
        self.num_channels = num_channels
        self.width = width
        self.stages = stages or min(4, max(1, round(math.log2(image_size / 2))))
        super().__init__(**kwargs)


class ConvnetForImageClassification(PreTrainedModel):  # type: ignore[misc]
    """Stages of two convolutions, the mean over what is left of the image, and a linear layer.

    Groups are normalised and not batches: a batch's statistics would differ from rank to rank, and with its size.
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
        """Logits, shape (batch, classes), and with `labels`, shape (batch,), their mean cross entropy.

        `pixel_values` has the shape (batch, channels, height, width).
        """
        logits = self.classifier(self.features(pixel_values))
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return ImageClassifierOutputWithNoAttention(loss=loss, logits=logits)

    def _init_weights(self, module: nn.Module) -> None:
        # Functions of nn.init, which transformers guards: it calls this for weights that it has loaded, too.
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
