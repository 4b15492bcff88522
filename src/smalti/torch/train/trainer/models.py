"""The default image classifier, class scores from an output; and the folder of a trained model of any task."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smalti.errors import MissingDependency, SchemaError, TrainingError
from smalti.torch.train.config import ImageOptions, TrainConfig, find_named
from smalti.torch.train.run.files import read_json, write_json
from smalti.torch.train.trainer.task import Task, task_of

_BATCH_NORM_MOMENTUM = 0.1
_DROPOUT = 0.2  # of the MobileNetV2 paper


def build_model(config: TrainConfig) -> nn.Module:
    """Build an image classifier for as many classes as the options of the task say.

    Weights are loaded, or drawn from torch's generator.

    `config.model` is `mobilenet_v2`, or `module:function`, called with the configuration. With `weights`, it is the
    image classifier of transformers that they are of.

    Args:
        config: Settings of which `model`, `weights` and `task_options` count.

    Raises:
        SchemaError: the name is unknown, or its function does not return an nn.Module.
        MissingDependency: transformers is not installed.
        TrainingError: the weights cannot be loaded.

    Examples:
        >>> options = {"num_classes": 5}
        >>> config = TrainConfig(data="s3://bucket/photos", run_dir="s3://bucket/runs/8", task_options=options)
        >>> build_model(config)(torch.zeros(1, 3, 96, 96)).logits.shape
        torch.Size([1, 5])
    """
    if ":" in config.model:
        made = find_named(config.model, field="model")(config)
        if not isinstance(made, nn.Module):
            raise SchemaError(
                f"`model` '{config.model}' returned {type(made).__name__}; the function must take a "
                "TrainConfig and return an nn.Module.",
                model=config.model,
            )
        return made
    # A task of a user's may have other options, too.
    known = ImageOptions.option_defaults()
    options = ImageOptions(**{name: value for name, value in config.task_options.items() if name in known})
    labels: dict[str, Any] = {"num_labels": options.num_classes}
    if names := options.class_names:
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    model: nn.Module
    if config.weights is not None:
        try:
            # The pretrained head has other classes: a new head is drawn where the shapes differ.
            model = import_transformers().AutoModelForImageClassification.from_pretrained(
                config.weights, use_safetensors=True, trust_remote_code=False, ignore_mismatched_sizes=True, **labels
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise TrainingError(
                f"the weights '{config.weights}' cannot be loaded: {error} Expected a folder with config.json and "
                "model.safetensors, or the name of such a model on the hub (which needs the network).",
                weights=config.weights,
            ) from error
    elif config.model == "mobilenet_v2":
        model = _mobilenet_v2(options, labels)
    else:
        raise SchemaError(
            f"`model` '{config.model}' is unknown; expected 'mobilenet_v2', or 'module:function' with a function of "
            "yours that takes the configuration and returns a module, such as one of torchvision with as many classes.",
            model=config.model,
        )
    # transformers' MobileNets pass TensorFlow's momentum 0.997 to torch, where it is the weight of the *newest* batch:
    # the running statistics would be those of the last batch alone.
    for module in model.modules():
        momentum = getattr(module, "momentum", None)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and momentum is not None and momentum > 0.9:
            module.momentum = _BATCH_NORM_MOMENTUM
    return model


def logits_of(output: Any) -> Tensor:
    """Return the class scores, shape (n, classes), of a classifier's output: a tensor, or an object with `.logits`.

    Raises:
        TrainingError: the output is neither.
    """
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TrainingError(
        f"the model returned {type(output).__name__}; expected a tensor of class scores or an object with `.logits`. "
        "Wrap the model in a module that returns one of these.",
    )


def save_model(model: nn.Module, config: TrainConfig, folder: Path, task: Task | None = None) -> None:
    """Write `model.safetensors`, `config.json` and `smalti.json` (classes, image size, normalisation) into `folder`.

    For transformers' models this is their own layout: `AutoModelForImageClassification.from_pretrained(folder)` opens
    it. A task that was given as an object is needed here, too.
    """
    task = task_of(config, task)
    folder.mkdir(parents=True, exist_ok=True)
    task.save_model(model, config, folder)
    write_json(folder / "smalti.json", {**task.describe(config), "train": config.public_json()})


def load_model(folder: Path, task: Task | None = None) -> tuple[nn.Module, TrainConfig]:
    """Return the model that `save_model` wrote into a local folder, and the configuration that it was trained with.

    A task that was given as an object is stored nowhere, and has to be given again.

    Raises:
        TrainingError: the folder holds no such model, or one that was saved before the configuration was.
        SchemaError: the model's task cannot be imported.
    """
    settings = read_json(folder / "smalti.json")
    if "train" not in settings:
        raise TrainingError(f"{folder} does not say how its model was made: an older version of Smalti has saved it")
    config = TrainConfig.from_json(settings["train"])
    return task_of(config, task).load_model(folder, config), config


def _mobilenet_v2(options: ImageOptions, labels: dict[str, Any]) -> nn.Module:
    """Return the model with initial weights that suit a short training.

    transformers draws all weights with a deviation of 0.02, whatever the fan. He's rule, and residual blocks that begin
    as identities, raised held-out accuracy on the demo's flowers from 0.60 to 0.72 in the same 480 steps.
    """
    transformers = import_transformers()
    settings = transformers.MobileNetV2Config(
        depth_multiplier=options.width,
        image_size=options.image_size,
        # TensorFlow's asymmetric padding is needed for its published weights only; it costs a third of a CPU's speed.
        tf_padding=False,
        # The default, 0.8, is TensorFlow's probability to keep a value; as a probability to drop it is too high.
        classifier_dropout_prob=_DROPOUT,
        **labels,
    )
    model: nn.Module = transformers.MobileNetV2ForImageClassification(settings)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if getattr(module, "use_residual", False):
            last: Any = module.reduce_1x1
            nn.init.zeros_(last.normalization.weight)
    return model


def import_transformers() -> Any:
    """Return the module transformers, or raise a MissingDependency."""
    try:
        import transformers
    except ImportError as error:
        raise MissingDependency(
            "transformers is not installed; it is needed to build this model: pip install 'smalti[train]'.",
            package="transformers",
        ) from error
    return transformers
