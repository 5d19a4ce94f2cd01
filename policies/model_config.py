"""Settings of a policy's neural network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Activation = Literal["tanh", "relu", "silu"]
Width = Annotated[int, Field(ge=1, le=100_000)]


class ModelConfig(BaseModel):
    """What network a policy uses; see `networks.build_network`. Immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    hidden: list[Width] = Field(
        [64, 64],
        description="Units of each hidden layer; unused for images, which go through a fixed "
        "convolutional network of 512 features. An empty list makes the policy linear.",
    )
    activation: Activation = Field(
        "tanh",
        description="Function after each hidden layer: tanh, relu or silu. Images always use relu.",
    )
    share_layers: bool = Field(
        False,
        description="Whether policy and value function share all layers but the last; cheaper, but "
        "the two losses then compete.",
    )
    use_lstm: bool = Field(
        False,
        description="Put an LSTM between the hidden layers and the outputs, for environments that "
        "hide part of their state; layers are then shared whatever share_layers says.",
    )
    lstm_size: int = Field(64, ge=1, description="Units of the LSTM's hidden state.")
    max_seq_len: int = Field(
        32,
        ge=1,
        description="Longest sequence in steps that gradients flow through; longer fragments are "
        "cut and start from the recorded state.",
    )
    custom_network: str | None = Field(
        None,
        description='Import path "module:Class" of your own torch module, made as '
        "Class(observation_space, num_outputs, **custom_network_config); its forward takes the "
        "observations and returns (distribution inputs [n, num_outputs], values [n]).",
    )
    custom_network_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Keyword arguments of the custom network.",
    )
    free_log_std: bool = Field(
        True,
        description="Whether the log standard deviations of continuous actions are parameters of "
        "their own; otherwise they are outputs of the network and depend on the observation.",
    )
    initial_log_std: float = Field(
        0.0,
        ge=-20.0,
        le=20.0,
        description="Log standard deviation of continuous actions before training, in units of "
        "the policy's actions; lower explores less.",
    )

    @field_validator("custom_network")
    @classmethod
    def _import_path(cls, value: str | None) -> str | None:
        if value is not None:
            module, _, name = value.partition(":")
            parts = [*module.split("."), *name.split(".")]
            if not all(part.isidentifier() for part in parts):
                raise ValueError(f'got {value!r}, expected an import path "module:Class"')
        return value

    @model_validator(mode="after")
    def _one_kind_of_network(self) -> ModelConfig:
        if self.custom_network is not None and self.use_lstm:
            raise ValueError(
                "use_lstm has no effect on a custom_network; give that class an initial_state "
                "method instead"
            )
        if self.custom_network is None and self.custom_network_config:
            raise ValueError("custom_network_config is set, but custom_network is not")
        return self
