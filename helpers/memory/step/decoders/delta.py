"""The page of the hybrids: a gated delta rule in most layers, gated attention in the others. No torch.

The rule is counted as Transformers' own code runs it, by chunks of 64 tokens. That is what runs where neither
flash-linear-attention nor its kernels of the hub are installed; those keep less.
"""

from __future__ import annotations

from ....catalog.layers import Attention, Delta, Mlp
from ..operators import CONVOLUTION
from ..tape import Tensor
from .decoder import CenteredNorm, Decoder, PartlyRotated
from .experts import Qwen3Moe
from .linears import FP32, HALF

CHUNK = 64


class Hybrid(PartlyRotated, CenteredNorm, Qwen3Moe):
    """Qwen3.5: each projection of the rule by itself."""

    rotary_default = 0.25

    @property
    def table_bytes(self) -> tuple[int, ...]:
        """Positions in three dimensions are told for each sequence."""
        return tuple(one * self.setup.micro_batch for one in super().table_bytes)

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        if attention.delta:
            return self._delta_net(hidden, attention, attention.delta), None
        return self._gated_attention(hidden, attention)

    def _gated_attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        """Half of what q_proj returns is a gate, head by head, and written out."""
        tape, (q, k, v, o) = self.tape, attention.linears
        both = self.linear(hidden, q)
        query, gate = tape.split(both, both.values // 2, both.values // 2)
        del both
        gate = tape.copy(gate)
        query = self.norm(query, self.tokens * attention.heads)
        key = self.norm(self.linear(hidden, k), self.tokens * attention.kv_heads)
        value = self.linear(hidden, v)
        query, key = self.rotated(query), self.rotated(key)
        output, weights = self.attended(query, key, value, attention)
        output = tape.mul(output, tape.keeps_result(gate))
        return self.linear(output, o), weights

    # --- the delta rule ----------------------------------------------------------------------------------------------

    def _delta_net(self, hidden: Tensor, attention: Attention, delta: Delta) -> Tensor:
        tape = self.tape
        decays, steps = self.weight(delta.value_heads), self.weight(delta.value_heads)
        mixed, z, b, a = self._projected(hidden, attention, delta)
        mixed = self._convolved(mixed, delta)
        keys = self.tokens * delta.key_heads * delta.key_dim
        query, key, value = tape.split(mixed, keys, keys, mixed.values - 2 * keys)
        beta = tape.keeps_result(b)
        decay = tape.elementwise(tape.keeps_result(tape.cast(decays, FP32)))
        time = tape.add(tape.cast(a, FP32), steps)
        decay = tape.mul(decay, tape.elementwise(time, kept=(time,)))
        del time
        out = self._chunked(query, key, value, decay, beta, delta)
        out = self._gated_norm(out, z, delta)
        return self.linear(out, attention.linears[-1])

    def _projected(self, hidden: Tensor, attention: Attention, delta: Delta) -> tuple[Tensor, ...]:
        return tuple(self.linear(hidden, one) for one in attention.linears[:-1])

    def _convolved(self, mixed: Tensor, delta: Delta) -> Tensor:
        """A convolution of each channel, with more tokens at its end, of which a view is left; then SiLU."""
        tape, autocast = self.tape, self.width.autocast
        weight = self.weight(delta.channels, 1, delta.kernel)
        if autocast:
            mixed, weight = tape.cast(tape.cast(mixed, FP32), HALF), tape.cast(weight, HALF)
        longer = self.setup.micro_batch * delta.channels * (self.setup.sequence + delta.kernel - 1)
        out = tape.product(mixed, weight, longer, delta.kernel, kind=CONVOLUTION)
        return self.activated(tape.part(out, mixed.values))

    def _gated_norm(self, x: Tensor, gate: Tensor, delta: Delta) -> Tensor:
        """RMSNorm of each head, times SiLU of the gate in FP32."""
        tape, rows, width = self.tape, self.tokens * delta.value_heads, x.width
        weight = self.weight(delta.value_dim)
        x, _variance = self._over_rms(tape.cast(x, FP32), rows)
        x = tape.mul(weight, tape.cast(x, width), max(width, self.width.weights))
        x = tape.mul(x, self.activated(tape.cast(gate, FP32)))
        return tape.cast(x, width)

    def _chunked(self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, delta: Delta) -> Tensor:
        """`torch_chunk_gated_delta_rule`, with its names; square matrices have a row for each token of a chunk."""
        tape, dtype, given = self.tape, query.width, decay  # noqa: F841
        batch, heads, chunks = self.setup.micro_batch, delta.value_heads, -(-self.setup.sequence // CHUNK)
        tokens = batch * heads * chunks * CHUNK
        keys, values, square = tokens * delta.key_dim, tokens * delta.value_dim, tokens * CHUNK
        of_heads = self.tokens * heads * delta.key_dim
        if heads != delta.key_heads:
            query, key = tape.written_out(query, of_heads), tape.written_out(key, of_heads)
        query, key, value, beta, decay = [tape.cast(one, FP32) for one in (query, key, value, beta, decay)]
        query, key = self._unit(query, delta), self._unit(key, delta)
        query = tape.elementwise(query)
        query, key, value = [tape.written_out(one, size) for one, size in ((query, keys), (key, keys), (value, values))]
        beta, decay = [tape.written_out(one, tokens) for one in (beta, decay)]
        v_beta, k_beta = tape.mul(value, beta), tape.mul(key, beta)
        mask = tape.new(CHUNK * CHUNK, 1)
        cumulated = tape.written_out(decay, tokens)
        pairwise = self._difference(tape.view(cumulated, square), tape.view(cumulated, square))
        pairwise = tape.shaped(tape.new(square, FP32), pairwise, kept=(mask,))
        pairwise = tape.keeps_result(pairwise)
        system = tape.mul(self._by_chunk(k_beta, key, square, delta.key_dim), pairwise)
        intra = tape.mul(self._by_chunk(query, key, square, delta.key_dim), pairwise)
        decayed = tape.mul(k_beta, tape.keeps_result(cumulated))
        new_values = self._solved(system, v_beta, delta.value_dim)
        k_cumulated = self._solved(system, decayed, delta.key_dim)
        query = tape.mul(query, tape.keeps_result(cumulated))
        key = tape.mul(key, tape.keeps_result(tape.elementwise(cumulated)))
        chunk_decay = tape.keeps_result(tape.part(cumulated, batch * heads * chunks))
        out = self._scanned(delta, query, key, new_values, k_cumulated, intra, chunk_decay)
        if self.setup.sequence % CHUNK:
            out = tape.part(out, self.tokens * heads * delta.value_dim)
        return tape.cast(out, dtype)

    def _scanned(self, delta: Delta, *given: Tensor) -> Tensor:
        """Its second phase: from chunk to chunk the states go on, and what is read of them is written to one tensor."""
        query, key, new_values, k_cumulated, intra, chunk_decay = given
        tape, heads = self.tape, self.setup.micro_batch * delta.value_heads
        of_keys, of_values = heads * CHUNK * delta.key_dim, heads * CHUNK * delta.value_dim
        state = tape.new(heads * delta.key_dim * delta.value_dim, FP32)
        out = tape.new(new_values.values, FP32)
        for _ in range(new_values.values // of_values):
            read = self._matmul(tape.part(k_cumulated, of_keys), state, of_values, delta.key_dim)
            v_new = self._difference(tape.part(new_values, of_values), read)
            del read
            inter = self._matmul(self._one_chunk(query, of_keys), state, of_values, delta.key_dim)
            within = self._matmul(tape.part(intra, heads * CHUNK * CHUNK), v_new, of_values, CHUNK)
            out = tape.written(out, tape.add(inter, within))
            del within
            kept = tape.mul(state, tape.part(chunk_decay, heads))
            learned = self._matmul(self._one_chunk(key, of_keys), v_new, state.values, CHUNK)
            state = tape.add(kept, learned)
            del kept, learned
        return out

    def _by_chunk(self, a: Tensor, b: Tensor, values: int, inner: int) -> Tensor:
        """Q and K that no cast has put in order, head by head, are written out for a product of chunks."""
        if self._lies_by_token:
            a, b = self.tape.copy(a), self.tape.copy(b)
        return self._matmul(a, b, values, inner)

    def _one_chunk(self, x: Tensor, values: int) -> Tensor:
        """Of several sequences whose heads do not lie one after the other it is written out."""
        part = self.tape.part(x, values)
        return self.tape.copy(part) if self._lies_by_token and self.setup.micro_batch > 1 else part

    @property
    def _lies_by_token(self) -> bool:
        return self.width.weights == FP32 and not self.width.autocast

    def _unit(self, x: Tensor, delta: Delta) -> Tensor:
        """`l2norm`"""
        tape = self.tape
        inverse = tape.keeps_result(tape.elementwise(tape.summed(tape.mul(x, x), x.values // delta.key_dim)))
        return tape.mul(x, inverse)

    def _solved(self, system: Tensor, right: Tensor, columns: int) -> Tensor:
        """`torch.linalg.solve_triangular`, which keeps its matrix and its result."""
        tape, square, form = self.tape, system.values, (right.values, right.width)
        out = tape.new(*form)

        def rule(gradient: Tensor) -> list[Tensor | None]:
            of_right = tape.new(*form)
            tape.computes(2 * square * columns)
            product = tape.new(square, FP32)
            negated = tape.new(square, FP32)
            del product
            of_system = tape.new(square, FP32)
            del negated
            return [of_system, of_right]

        return tape.record(out, (system, right), (system, out), rule)

    # --- experts -----------------------------------------------------------------------------------------------------

    def routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        """The shared expert runs first, and its gate last."""
        tape = self.tape
        tape.flat = True
        shared = self.gated_mlp(x, mlp)
        _, scores = self.router(x, mlp)
        out = self.experts(x, scores, mlp)
        shared = tape.mul(tape.keeps_result(self.linear(x, mlp.linears[-1])), shared)
        out = tape.add(out, shared)
        tape.flat = False
        return out

    normalises = True


class Qwen3Next(Hybrid):
    """Two projections for all, whose parts lie head by head."""

    table_bytes = Decoder.table_bytes

    def _projected(self, hidden: Tensor, attention: Attention, delta: Delta) -> tuple[Tensor, ...]:
        """Q, K, V, z and the two gates are written out of their products, and the first three once more, together."""
        tape, (first, second, _) = self.tape, attention.linears
        qkvz, ba = self.linear(hidden, first), self.linear(hidden, second)
        keys, values = (
            self.tokens * one for one in (delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim)
        )
        query, key, value, z = tape.split(qkvz, keys, keys, values, values)
        b, a = tape.split(ba, ba.values // 2, ba.values // 2)
        value, z, b, a = tape.copy(value), tape.copy(z), tape.copy(b), tape.copy(a)
        query, key = tape.copy(query), tape.copy(key)
        return tape.joined(query, key, value), z, b, a
