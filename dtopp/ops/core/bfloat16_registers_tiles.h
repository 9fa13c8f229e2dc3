// A part of bfloat16_registers.h, which includes it: loops that process a tile of a product.

void swiglu(const float* tile, int64_t rows, int64_t columns, Number* act, int64_t act_stride, Number* saved,
            int64_t saved_stride, int64_t ffn) {
  if (columns < 32) return kScalar.swiglu(tile, rows, columns, act, act_stride, saved, saved_stride, ffn);
  for (int64_t n = 0; n < rows; ++n, tile += kPanelColumns, act += act_stride) {
    const Floats gate[2] = {get<Floats>(tile), get<Floats>(tile + 16)};
    const Floats up[2] = {get<Floats>(tile + 32), get<Floats>(tile + 48)};
    if (saved != nullptr) {
      put_rounded(saved, gate[0], gate[1]);
      put_rounded(saved + ffn, up[0], up[1]);
      saved += saved_stride;
    }
    put_rounded(act, gate[0] * sigmoid_of(gate[0]) * up[0], gate[1] * sigmoid_of(gate[1]) * up[1]);
  }
}

void swiglu_gradients(const float* tile, int64_t rows, int64_t columns, const SwigluGradients& to) {
  if (columns < kPanelColumns) return kScalar.swiglu_gradients(tile, rows, columns, to);
  for (int64_t n = 0; n < rows; ++n, tile += kPanelColumns) {
    const Number *gates = to.pre + n * to.pre_stride, *ups = gates + to.ffn;
    Number *d_gates = to.d_pre + n * to.d_pre_stride, *d_ups = d_gates + to.ffn;
    Number* scaled = to.scaled + n * to.scaled_stride;
    const Floats factor = Floats{} + to.gates[to.tokens[n] * to.gate_stride];
    Floats sum = {};
    for (int64_t f = 0; f < kPanelColumns; f += 32) {
      Floats act[2], d_gate[2], d_up[2];
#pragma GCC unroll 2
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t at = f + 16 * i;
        const Floats gate = get_floats(gates + at), up = get_floats(ups + at), da = get<Floats>(tile + at);
        const Floats sig = sigmoid_of(gate), silu = gate * sig, scaled_da = factor * da;
        sum += da * (silu * up);
        act[i] = factor * (silu * up);
        d_gate[i] = scaled_da * up * (sig + silu * (1.0F - sig));
        d_up[i] = scaled_da * silu;
      }
      put_rounded(scaled + f, act[0], act[1]);
      put_rounded(d_gates + f, d_gate[0], d_gate[1]);
      put_rounded(d_ups + f, d_up[0], d_up[1]);
    }
    to.grad_gates[n] += sum_of(sum);
  }
}

// The rows of a block's tokens are scattered in memory, so the loop prefetches kAhead rows.
void add_rows(const float* tile, int64_t rows, int64_t columns, const RowSums& to) {
  constexpr int64_t kAhead = 8;
  if (columns < kPanelColumns) return kScalar.add_rows(tile, rows, columns, to);
  for (int64_t n = 0; n < rows; ++n, tile += kPanelColumns) {
    if (n + kAhead < rows) {
      const float* later = to.y + to.tokens[n + kAhead] * to.stride;
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPanelColumns; i += 16) __builtin_prefetch(later + i, 1);
    }
    const Floats gate = Floats{} + (to.gates == nullptr ? 1.0F : to.gates[to.tokens[n] * to.gate_stride]);
    float* sum = to.y + to.tokens[n] * to.stride;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kPanelColumns; i += 16) {
      put(sum + i, gate * get<Floats>(tile + i) + get<Floats>(sum + i));
    }
  }
}

float softmax(float* scores, int64_t count, int64_t padded, float scale, float& highest, Number* weights) {
  constexpr float kMasked = -1e38F;  // its weight is 0
  const int64_t whole = (count + 31) / 32 * 32;
  for (int64_t i = count; i < whole; ++i) scores[i] = kMasked;
  Floats most = Floats{} + highest;
  for (int64_t i = 0; i < whole; i += 16) most = larger(get<Floats>(scores + i), most);
  highest = largest_of(most);
  Floats sum = {};
  for (int64_t i = 0; i < whole; i += 32) {
    const Floats low = power_of_two(scale * (get<Floats>(scores + i) - highest));
    const Floats high = power_of_two(scale * (get<Floats>(scores + i + 16) - highest));
    put_rounded(weights + i, low, high);
    sum += low + high;
  }
  for (int64_t i = count; i < padded; ++i) weights[i] = Number(0);
  return sum_of(sum);
}

void softmax_gradients(const float* tile, const float* d_tile, int64_t rows,
                       const SoftmaxGradients<c10::BFloat16>& to) {
  constexpr int64_t kVectors = kPanelColumns / 16;
  Floats logsumexp[kVectors], means[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) {
    logsumexp[v] = get<Floats>(to.logsumexp + 16 * v);
    means[v] = get<Floats>(to.means + 16 * v);
  }
  const float scale = to.scale * kLog2E;
  for (int64_t j = 0; j < rows; ++j, tile += kPanelColumns, d_tile += kPanelColumns) {
    Number *weights = to.weights + j * to.stride, *d_scores = to.d_scores + j * to.stride;
    Floats w[kVectors], d[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      w[v] = power_of_two(scale * get<Floats>(tile + 16 * v) - logsumexp[v]);
      d[v] = to.scale * w[v] * (get<Floats>(d_tile + 16 * v) - means[v]);
    }
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; v += 2) {
      put_rounded(weights + 16 * v, w[v], w[v + 1]);
      put_rounded(d_scores + 16 * v, d[v], d[v + 1]);
    }
    for (int64_t i = 0; to.diagonal && i < j; ++i) weights[i] = d_scores[i] = Number(0);
  }
}
