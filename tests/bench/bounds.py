"""What a machine allows a model, by arithmetic alone: bytes over bandwidth, operations over rate.

A step reads all weights once and the keys and values of every row; a product does two operations a
weight and token.  Whichever of the two takes longer bounds the step (ENGINE.md §4).  Nothing here is
measured: the rates are arguments, taken in the same run as the figures that stand beside them.
Refuses to know: torch, clocks, who computes.
"""

from __future__ import annotations

from dataclasses import dataclass

BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one machine with `threads` at work: reading memory, multiplying bf16 matrices."""

    read_bytes_per_s: float
    flops_per_s: float
    threads: int

    def sentence(self) -> str:
        return (
            f"memory reads at {self.read_bytes_per_s / 1e9:.1f} GB/s, bf16 matrices multiply at "
            f"{self.flops_per_s / 1e9:.0f} GFLOP/s, with {self.threads} threads"
        )


@dataclass(frozen=True, slots=True)
class ModelSize:
    """`layer_weights` of the linears of all layers, `head_weights` of the last product; `file_bytes`:
    both of them as the file keeps them."""

    layer_weights: int
    head_weights: int
    layers: int
    heads: int
    head_dim: int
    kv_bytes_per_token: int
    file_bytes: int

    @property
    def bf16_bytes(self) -> int:
        return BF16_BYTES * (self.layer_weights + self.head_weights)

    def decode_s(self, rates: Rates, *, weight_bytes: int, rows: int, context: int) -> float:
        """One token more for each of `rows` sequences that are `context` tokens long."""
        read = weight_bytes + rows * context * self.kv_bytes_per_token
        products = 2 * (self.layer_weights + self.head_weights) * rows
        attention = 4 * self.layers * self.heads * self.head_dim * rows * context
        return max(read / rates.read_bytes_per_s, (products + attention) / rates.flops_per_s)

    def prefill_s(self, rates: Rates, *, weight_bytes: int, tokens: int) -> float:
        """A prompt of `tokens` in one step, of which the last one's logits are wanted."""
        products = 2 * (self.layer_weights * tokens + self.head_weights)
        attention = 2 * self.layers * self.heads * self.head_dim * tokens**2
        return max(
            weight_bytes / rates.read_bytes_per_s, (products + attention) / rates.flops_per_s
        )

    def closed_loop_per_s(
        self,
        rates: Rates,
        *,
        weight_bytes: int,
        concurrency: int,
        input_tokens: int,
        output_tokens: int,
    ) -> float:
        """Output tokens/s of `concurrency` streams that begin together: each prompt is prefilled
        at the matrix rate and gives the first token, then all decode in step."""
        prefills_s = concurrency * self.prefill_s(
            rates, weight_bytes=weight_bytes, tokens=input_tokens
        )
        decodes_s = sum(
            self.decode_s(rates, weight_bytes=weight_bytes, rows=concurrency, context=context)
            for context in range(input_tokens + 1, input_tokens + output_tokens)
        )
        return concurrency * output_tokens / (prefills_s + decodes_s)


def best(rates: list[Rates]) -> Rates:
    """The fastest seen: a bound that a busy moment lowered would be none."""
    assert rates
    return Rates(
        read_bytes_per_s=max(each.read_bytes_per_s for each in rates),
        flops_per_s=max(each.flops_per_s for each in rates),
        threads=rates[0].threads,
    )
