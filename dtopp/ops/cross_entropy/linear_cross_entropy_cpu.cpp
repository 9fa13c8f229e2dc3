// Processes one chunk of tokens at a time. First, threads form the logits and exponentials of their blocks of
// the vocabulary and sum them while they are in cache.
//
// Once the sums are complete, each thread turns its blocks into gradients d loss / d logits. While these are
// in cache, it multiplies them with the chunk's rows, which gives its rows of the weight's gradient. It also
// multiplies them with the weight, which gives its part of the gradient of x. Between the two steps, only the
// chunk's exponentials leave the cache.
#include <limits>
#include <optional>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {
namespace {

// Columns of a block of logits. As an operand of a product, it is one block of K deep.
constexpr int64_t kBlockColumns = kTileDepth;

int64_t logit_blocks(int64_t vocabulary) { return round_up(vocabulary, kBlockColumns) / kBlockColumns; }

// Returns the indices of the tokens whose target is not ignored. Throws c10::Error, beginning with `op`, if a
// target is out of range.
std::vector<int64_t> counted_tokens(const char* op, const Tensor& targets_T, int64_t vocabulary,
                                    std::optional<int64_t> ignore_index) {
  std::vector<int64_t> rows;
  const auto target = targets_T.accessor<int64_t, 1>();
  rows.reserve(target.size(0));
  for (int64_t t = 0; t < target.size(0); ++t) {
    if (ignore_index && target[t] == *ignore_index) continue;
    TORCH_CHECK(target[t] >= 0 && target[t] < vocabulary, op, ": expected targets from 0 to ", vocabulary - 1,
                ", got ", target[t], " at index ", t);
    rows.push_back(t);
  }
  return rows;
}

// One token's sums over the logits processed so far.
template <typename Real>
struct LogitSums {
  Real highest = -std::numeric_limits<Real>::infinity();
  double total = 0;       // sum of exp(logit - highest)
  Real target = 0;        // the target's logit; 0 until its block is processed
  int64_t likeliest = 0;  // first id with the logit `highest`

  double lse() const { return highest + std::log(total); }

  // Adds the sums of later logits. If all logits are -inf or NaN, a difference is NaN, and so is the sum.
  void add(const LogitSums& later) {
    target += later.target;
    if (later.highest > highest) {
      total = later.total + total * std::exp(static_cast<double>(highest) - later.highest);
      highest = later.highest;
      likeliest = later.likeliest;
    } else {
      total += later.total * std::exp(static_cast<double>(later.highest) - highest);
    }
  }
};

// Adds logits[0 .. columns), which belong to the vocabulary ids from `first` on. Replaces them by exp(logit -
// their highest) and returns that highest logit.
template <typename Real>
[[gnu::always_inline]] inline Real add_logits(Real* logits, int64_t first, int64_t columns, int64_t target,
                                              LogitSums<Real>& sums) {
  LogitSums<Real> block;
  Real highest = block.highest, total = 0;
#pragma omp simd reduction(max : highest)
  for (int64_t v = 0; v < columns; ++v) highest = logits[v] > highest ? logits[v] : highest;
  if (highest > sums.highest)
    block.likeliest = first + (std::find(logits, logits + columns, highest) - logits);
  if (target >= first && target < first + columns) block.target = logits[target - first];
#pragma omp simd reduction(+ : total)
  for (int64_t v = 0; v < columns; ++v) {
    logits[v] = fast_exp(logits[v] - highest);
    total += logits[v];
  }
  block.highest = highest;
  block.total = total;
  sums.add(block);
  return highest;
}

// Distributes the blocks of the vocabulary over threads: body(block, its first id, its columns, share).
template <typename Tiles, typename Body>
void for_vocabulary_blocks(int64_t vocabulary, int64_t shares, const Body& body) {
  const int64_t blocks = logit_blocks(vocabulary);
  at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (int64_t block = blocks * share / shares; block < blocks * (share + 1) / shares; ++block) {
        const int64_t first = block * kBlockColumns;
        body(block, first, std::min(kBlockColumns, vocabulary - first), share);
      }
    }
    Tiles::release();
  });
}

// A chunk of tokens whose logits are formed together.
struct TokenChunk {
  const int64_t* tokens;   // [rows]
  const int64_t* targets;  // targets of all tokens, not only of the chunk
  int64_t rows;
};

// Workspace for the logits of a chunk of up to `rows` tokens.
template <typename Tiles>
struct LogitBuffers {
  using Real = typename Tiles::Real;
  int64_t shares;
  BufferParts<typename Tiles::Packed> weight;  // per thread: a block of the weight, packed for either product
  BufferParts<typename Tiles::Packed>
      x_ND;                           // the chunk's rows, packed as the left operand; shared by all threads
  std::vector<LogitSums<Real>> sums;  // [shares, rows]
  std::vector<Real> highest;          // [blocks, rows]: the logit that was subtracted from the block's logits

  LogitBuffers(int64_t rows, int64_t hidden, int64_t vocabulary, const at::TensorOptions& options)
      : shares(std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(logit_blocks(vocabulary), 1))),
        weight(shares,
               std::max(Tiles::right_size(hidden, kBlockColumns), Tiles::right_size(kBlockColumns, hidden)),
               options),
        x_ND(1, Tiles::template left_size<Order::kRows>(rows, hidden), options),
        sums(shares * rows),
        highest(logit_blocks(vocabulary) * rows) {}
};

// Forms the logits of a chunk, one block of the vocabulary at a time, and returns one LogitSums per row. A
// block's exponentials (add_logits) [rows, kBlockColumns] stay in place(block, share). keep(block, columns,
// exponentials) is called while they are in cache.
template <typename Scalar, typename Tiles, typename Place, typename Keep>
std::vector<LogitSums<typename Tiles::Real>> form_logits(const Scalar* x_TD, const Scalar* weight_VD,
                                                         int64_t hidden, int64_t vocabulary,
                                                         const TokenChunk& chunk,
                                                         LogitBuffers<Tiles>& buffers, const Place& place,
                                                         const Keep& keep) {
  using Real = typename Tiles::Real;
  pack_left_rows<Tiles>([&](int64_t n) { return x_TD + chunk.tokens[n] * hidden; }, chunk.rows, hidden,
                        buffers.x_ND.of(0));
  std::fill(buffers.sums.begin(), buffers.sums.end(), LogitSums<Real>());
  for_vocabulary_blocks<Tiles>(
      vocabulary, buffers.shares, [&](int64_t block, int64_t first, int64_t columns, int64_t share) {
        Real* logits = place(block, share);
        Tiles::pack_right_transposed(weight_VD + first * hidden, hidden, hidden, columns, 0, columns,
                                     buffers.weight.of(share));
        Tiles::template multiply<Order::kRows>(buffers.x_ND.of(0), buffers.weight.of(share), chunk.rows,
                                               columns, hidden, logits, kBlockColumns, false);
        run_widest([&] {
          for (int64_t n = 0; n < chunk.rows; ++n)
            buffers.highest[block * chunk.rows + n] =
                add_logits(logits + n * kBlockColumns, first, columns, chunk.targets[chunk.tokens[n]],
                           buffers.sums[share * chunk.rows + n]);
        });
        keep(block, columns, logits);
      });
  std::vector<LogitSums<Real>> sums(buffers.sums.begin(), buffers.sums.begin() + chunk.rows);
  for (int64_t share = 1; share < buffers.shares; ++share)
    for (int64_t n = 0; n < chunk.rows; ++n) sums[n].add(buffers.sums[share * chunk.rows + n]);
  return sums;
}

constexpr int64_t kLogitBytes = 64 << 20;
// A chunk reads the weight twice, packs it, and adds to its gradient. With fewer tokens this costs more than
// a twentieth of the products, and time would grow faster than the vocabulary.
constexpr int64_t kFewestTokensPerChunk = 256;
constexpr int64_t kMostTokensPerChunk = 1024;

int64_t tokens_per_chunk(int64_t tokens, int64_t vocabulary, int64_t bytes) {
  const int64_t row_bytes = bytes * std::max<int64_t>(logit_blocks(vocabulary), 1) * kBlockColumns;
  const int64_t most = std::clamp(kLogitBytes / row_bytes, kFewestTokensPerChunk, kMostTokensPerChunk);
  return even_part(tokens, most, 1);
}

struct LossInputs {
  Tensor x_TD, weight_VD;
  double share;  // weight of one token in the mean
  double z_weight;
  bool need_x, need_weight;

  int64_t hidden() const { return x_TD.size(1); }
  int64_t vocabulary() const { return weight_VD.size(0); }
  bool need_gradient() const { return need_x || need_weight; }
};

struct LossSums {
  double nll = 0, z = 0;
  Tensor grad_x_TD;       // of x's type; undefined if not needed, like the next one
  Tensor grad_weight_VD;  // fp32 (f64)
};

// True if gradients are rounded to bf16 as they are formed, directly into packed rows. The exponentials are
// then stored in bf16 as well: half the memory, so a chunk has twice the tokens.
template <typename Tiles>
constexpr bool kRounds = std::is_same_v<typename Tiles::Packed, c10::BFloat16>;

template <typename Tiles>
struct LossBuffers {
  using Real = typename Tiles::Real;
  using Packed = typename Tiles::Packed;
  LogitBuffers<Tiles> forward;
  bool all_here;  // true: keep the exponentials of all blocks, to be replaced by gradients in place
  BufferParts<Real> logits;         // [blocks, rows, kBlockColumns], or one block per share
  BufferParts<Packed> rounded;      // if kRounds: the exponentials of all blocks
  BufferParts<Packed> x_ND;         // the chunk's rows, packed as the right operand; shared by all threads
  BufferParts<Packed> grad_logits;  // per share: a block of gradients, packed for either product
  BufferParts<Packed> grad_rows;    // if kRounds: the block before that, packed by rows
  BufferParts<Real> grad_x_ND;

  LossBuffers(int64_t rows, const LossInputs& in)
      : forward(rows, in.hidden(), in.vocabulary(), in.x_TD.options()),
        all_here(in.need_gradient() && !kRounds<Tiles>),
        logits(all_here ? logit_blocks(in.vocabulary()) : forward.shares, rows * kBlockColumns,
               in.x_TD.options()),
        rounded(in.need_gradient() && kRounds<Tiles> ? logit_blocks(in.vocabulary()) : 0,
                rows * kBlockColumns, in.x_TD.options()),
        x_ND(1, in.need_weight ? Tiles::right_size(rows, in.hidden()) : 0, in.x_TD.options()),
        grad_logits(in.need_gradient() ? forward.shares : 0,
                    std::max(Tiles::template left_size<Order::kRows>(rows, kBlockColumns),
                             Tiles::template left_size<Order::kColumns>(kBlockColumns, rows)),
                    in.x_TD.options()),
        grad_rows(in.need_gradient() && kRounds<Tiles> ? forward.shares : 0,
                  Tiles::template left_size<Order::kRows>(rows, kBlockColumns), in.x_TD.options()),
        grad_x_ND(in.need_x ? forward.shares : 0, rows * in.hidden(), in.x_TD.options()) {}

  Real* block(int64_t index, int64_t share) const { return logits.of(all_here ? index : share); }
};

// Turns a block's exponentials into d loss / d logits: factor * softmax, minus `share` at the target.
template <typename Real>
void form_gradient(const TokenChunk& chunk, const std::vector<double>& lse_N, const Real* highest,
                   const LossInputs& in, int64_t first, int64_t columns, Real* exponentials) {
  run_widest([&] {
    for (int64_t n = 0; n < chunk.rows; ++n) {
      Real* row = exponentials + n * kBlockColumns;
      const double factor = in.share * (1 + 2 * in.z_weight * lse_N[n]);
      const Real scale = static_cast<Real>(factor * std::exp(highest[n] - lse_N[n]));
#pragma omp simd
      for (int64_t v = 0; v < columns; ++v) row[v] *= scale;
      const int64_t target = chunk.targets[chunk.tokens[n]] - first;
      if (target >= 0 && target < columns) row[target] -= static_cast<Real>(in.share);
    }
  });
}

// The same, from rounded exponentials into packed rows. The gradient at the target uses the target's logit,
// which was not rounded: for a probability near 1 the difference is smaller than the rounding error.
void round_gradient(const TokenChunk& chunk, const std::vector<double>& lse_N,
                    const std::vector<float>& target_N, const float* highest, const LossInputs& in,
                    int64_t first, int64_t columns, const c10::BFloat16* exponentials, c10::BFloat16* rows) {
  using Tiles = Bfloat16Tiles;
  for (int64_t n = 0; n < chunk.rows; ++n) {
    c10::BFloat16* row = rows + n * Tiles::left_stride(columns);
    const double factor = in.share * (1 + 2 * in.z_weight * lse_N[n]);
    bfloat16_loops().convert_scaled(exponentials + n * kBlockColumns,
                                    static_cast<float>(factor * std::exp(highest[n] - lse_N[n])), row,
                                    columns);
    const int64_t target = chunk.targets[chunk.tokens[n]] - first;
    if (target >= 0 && target < columns)
      store(row + target, static_cast<float>(factor * std::exp(target_N[n] - lse_N[n]) - in.share));
    Tiles::fill_depth(row, columns);
  }
}

// d loss / d logits of a block, one row per token.
template <typename Tiles>
struct BlockGradient {
  const typename Tiles::Packed* rows;
  int64_t stride;
  int64_t columns;
};

// Adds to the block's rows of the weight's gradient: += gradient^T x.
template <typename Tiles, typename Real>
void add_weight_gradient(const BlockGradient<Tiles>& gradient, const TokenChunk& chunk, int64_t hidden,
                         int64_t share, const LossBuffers<Tiles>& buffers, Real* grad_weight) {
  auto* left = buffers.grad_logits.of(share);
  Tiles::pack_left_columns([&](int64_t n) { return gradient.rows + n * gradient.stride; }, gradient.columns,
                           chunk.rows, left);
  Tiles::template multiply<Order::kColumns>(left, buffers.x_ND.of(0), gradient.columns, hidden, chunk.rows,
                                            grad_weight, hidden, true);
}

// Adds the block's part of the gradient of x: gradient times its rows of the weight.
template <typename Tiles, typename Scalar>
void add_x_gradient(const BlockGradient<Tiles>& gradient, const Scalar* weight, const TokenChunk& chunk,
                    int64_t hidden, int64_t share, bool add, const LossBuffers<Tiles>& buffers) {
  auto* right = buffers.forward.weight.of(share);
  const auto* left = gradient.rows;
  if constexpr (!kRounds<Tiles>) {
    pack_left_rows<Tiles>([&](int64_t n) { return gradient.rows + n * gradient.stride; }, chunk.rows,
                          gradient.columns, buffers.grad_logits.of(share));
    left = buffers.grad_logits.of(share);
  }
  Tiles::pack_right_rows([&](int64_t v) { return weight + v * hidden; }, gradient.columns, hidden, 0, hidden,
                         right);
  Tiles::template multiply<Order::kRows>(left, right, chunk.rows, hidden, gradient.columns,
                                         buffers.grad_x_ND.of(share), hidden, add);
}

// Writes the gradient of x for the chunk's tokens: the sum of the shares' parts, in their order.
template <typename Scalar, typename Real>
void sum_x_gradient(const TokenChunk& chunk, const BufferParts<Real>& parts, int64_t shares, int64_t hidden,
                    Scalar* grad_x_TD) {
  at::parallel_for(0, chunk.rows, 8, [&](int64_t begin, int64_t end) {
    run_widest([&] {
      for (int64_t n = begin; n < end; ++n) {
        Real* sum = parts.of(0) + n * hidden;
        for (int64_t share = 1; share < shares; ++share) {
          const Real* part = parts.of(share) + n * hidden;
#pragma omp simd
          for (int64_t d = 0; d < hidden; ++d) sum[d] += part[d];
        }
        copy_converted(sum, grad_x_TD + chunk.tokens[n] * hidden, hidden);
      }
    });
  });
}

template <typename Scalar, typename Tiles>
void add_gradients(const LossInputs& in, const TokenChunk& chunk, const std::vector<double>& lse_N,
                   const std::vector<typename Tiles::Real>& target_N, const LossBuffers<Tiles>& buffers,
                   LossSums& sums) {
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden(), shares = buffers.forward.shares;
  const Scalar *x = in.x_TD.const_data_ptr<Scalar>(), *weight = in.weight_VD.const_data_ptr<Scalar>();
  if (in.need_weight)
    Tiles::pack_right_rows([&](int64_t n) { return x + chunk.tokens[n] * hidden; }, chunk.rows, hidden, 0,
                           hidden, buffers.x_ND.of(0));
  std::vector<char> started(shares, 0);
  for_vocabulary_blocks<Tiles>(
      in.vocabulary(), shares, [&](int64_t block, int64_t first, int64_t columns, int64_t share) {
        const Real* highest = buffers.forward.highest.data() + block * chunk.rows;
        BlockGradient<Tiles> gradient;
        if constexpr (kRounds<Tiles>) {
          gradient = {buffers.grad_rows.of(share), Tiles::left_stride(columns), columns};
          round_gradient(chunk, lse_N, target_N, highest, in, first, columns, buffers.rounded.of(block),
                         buffers.grad_rows.of(share));
        } else {
          gradient = {buffers.block(block, share), kBlockColumns, columns};
          form_gradient(chunk, lse_N, highest, in, first, columns, buffers.block(block, share));
        }
        if (in.need_weight)
          add_weight_gradient(gradient, chunk, hidden, share, buffers,
                              sums.grad_weight_VD.mutable_data_ptr<Real>() + first * hidden);
        if (!in.need_x) return;
        add_x_gradient(gradient, weight + first * hidden, chunk, hidden, share, started[share] != 0, buffers);
        started[share] = 1;
      });
  if (!in.need_x) return;
  sum_x_gradient(chunk, buffers.grad_x_ND, shares, hidden, sums.grad_x_TD.mutable_data_ptr<Scalar>());
}

template <typename Scalar, typename Tiles>
LossSums sum_chunks(const LossInputs& in, const int64_t* targets, const std::vector<int64_t>& counted) {
  using Real = typename Tiles::Real;
  const auto real = in.x_TD.options().dtype(c10::CppTypeToScalarType<Real>::value);
  const int64_t total = std::ssize(counted);
  LossSums sums;
  if (in.need_x) sums.grad_x_TD = at::zeros(in.x_TD.sizes(), in.x_TD.options());
  if (in.need_weight) sums.grad_weight_VD = at::zeros(in.weight_VD.sizes(), real);
  if (total == 0) return sums;
  const int64_t rows = tokens_per_chunk(total, in.vocabulary(), sizeof(typename Tiles::Packed));
  LossBuffers<Tiles> buffers(rows, in);
  for (int64_t first = 0; first < total; first += rows) {
    const TokenChunk chunk{counted.data() + first, targets, std::min(rows, total - first)};
    const auto logit_sums = form_logits<Scalar>(
        in.x_TD.const_data_ptr<Scalar>(), in.weight_VD.const_data_ptr<Scalar>(), in.hidden(), in.vocabulary(),
        chunk, buffers.forward, [&](int64_t block, int64_t share) { return buffers.block(block, share); },
        [&](int64_t block, int64_t columns, const Real* exponentials) {
          if constexpr (kRounds<Tiles>) {
            if (!in.need_gradient()) return;
            c10::BFloat16* to = buffers.rounded.of(block);
            for (int64_t n = 0; n < chunk.rows; ++n, to += kBlockColumns, exponentials += kBlockColumns)
              bfloat16_loops().convert(exponentials, to, columns);
          }
        });
    std::vector<double> lse_N;
    std::vector<Real> target_N;
    for (const LogitSums<Real>& row : logit_sums) {
      const double lse = lse_N.emplace_back(row.lse());
      target_N.push_back(row.target);
      sums.nll += lse - row.target;
      sums.z += lse * lse;
    }
    if (in.need_gradient()) add_gradients<Scalar>(in, chunk, lse_N, target_N, buffers, sums);
  }
  return sums;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward_cpu(const Tensor& x_TD, const Tensor& weight_VD,
                                                               const Tensor& targets_T, double z_weight,
                                                               int64_t ignore_index, bool need_x,
                                                               bool need_weight) {
  check_linear_cross_entropy("linear_cross_entropy_forward", x_TD, weight_VD, targets_T);
  const auto counted = counted_tokens("linear_cross_entropy", targets_T, weight_VD.size(0), ignore_index);
  const double count = static_cast<double>(std::max<size_t>(counted.size(), 1));
  const Tensor targets = targets_T.contiguous();
  const LossInputs in{plain(x_TD), plain(weight_VD), 1 / count, z_weight, need_x, need_weight};
  LossSums sums;
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    sums = sum_chunks<decltype(scalar), decltype(tiles)>(in, targets.const_data_ptr<int64_t>(), counted);
  });
  const auto real = x_TD.options().dtype(accumulator_type(x_TD));
  const double nll = sums.nll / count, z = sums.z / count;
  return {
      at::scalar_tensor(nll + z_weight * z, real), at::scalar_tensor(nll, real), at::scalar_tensor(z, real),
      need_x ? sums.grad_x_TD : at::empty({0}, x_TD.options()),
      need_weight ? sums.grad_weight_VD.to(weight_VD.scalar_type()) : at::empty({0}, weight_VD.options())};
}

constexpr int64_t kTokensPerChunk = 512;

template <typename Scalar, typename Tiles>
void fill_log_probs(const Tensor& x_TD, const Tensor& weight_VD, const int64_t* targets,
                    const std::vector<int64_t>& tokens, const Tensor& log_probs_T, const Tensor& greedy_T) {
  using Real = typename Tiles::Real;
  const int64_t total = x_TD.size(0), hidden = x_TD.size(1), vocabulary = weight_VD.size(0);
  if (total == 0) return;
  const int64_t rows = even_part(total, kTokensPerChunk, 1);
  LogitBuffers<Tiles> buffers(rows, hidden, vocabulary, x_TD.options());
  const BufferParts<Real> logits(buffers.shares, rows * kBlockColumns, x_TD.options());
  Real* log_probs = log_probs_T.mutable_data_ptr<Real>();
  int64_t* greedy = greedy_T.mutable_data_ptr<int64_t>();
  for (int64_t first = 0; first < total; first += rows) {
    const TokenChunk chunk{tokens.data() + first, targets, std::min(rows, total - first)};
    const auto sums = form_logits<Scalar>(
        x_TD.const_data_ptr<Scalar>(), weight_VD.const_data_ptr<Scalar>(), hidden, vocabulary, chunk, buffers,
        [&](int64_t /*block*/, int64_t share) { return logits.of(share); }, [](const auto&...) {});
    for (int64_t n = 0; n < chunk.rows; ++n) {
      log_probs[first + n] = static_cast<Real>(sums[n].target - sums[n].lse());
      greedy[first + n] = sums[n].likeliest;
    }
  }
}

std::tuple<Tensor, Tensor> log_probs_cpu(const Tensor& x_TD, const Tensor& weight_VD,
                                         const Tensor& targets_T) {
  check_linear_cross_entropy("token_log_probs", x_TD, weight_VD, targets_T);
  const auto tokens = counted_tokens("token_log_probs", targets_T, weight_VD.size(0), std::nullopt);
  const auto real = x_TD.options().dtype(accumulator_type(x_TD));
  const Tensor log_probs_T = at::empty({x_TD.size(0)}, real);
  const Tensor greedy_T = at::empty({x_TD.size(0)}, real.dtype(at::kLong));
  const Tensor targets = targets_T.contiguous();
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    fill_log_probs<decltype(scalar), decltype(tiles)>(
        plain(x_TD), plain(weight_VD), targets.const_data_ptr<int64_t>(), tokens, log_probs_T, greedy_T);
  });
  return {log_probs_T, greedy_T};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("linear_cross_entropy_forward", forward_cpu);
  m.impl("token_log_probs", log_probs_cpu);
}

}  // namespace dtopp::ops
