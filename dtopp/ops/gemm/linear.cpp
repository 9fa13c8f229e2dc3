#include "dtopp/ops/gemm/linear.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/record_function.h>

#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/dot_products.h"
#include "dtopp/ops/gemm/right_side.h"

namespace dtopp::ops {

// y = x W^T and dx = dy W: all threads pack as many columns of the weight as fit into the second-level cache.
// Then each thread packs and multiplies its blocks of rows.
//
// y = x W^T of fewer than kPanelRows rows: each thread multiplies one panel of the weight at a time
// (right_side.h). Sums have the same order, so a row of y does not depend on the other rows.
//
// dW = dy^T x: each thread owns some rows of dW and accumulates them over blocks of tokens.

namespace {

using Operands = std::array<c10::IValue, 2>;  // of a recorded product

constexpr int64_t kRightNumbers = int64_t{1} << 18;  // 1 MiB of floats: half of a second-level cache
constexpr int64_t kPanelRows = 128;                  // decoding runs such small batches
constexpr int64_t kWeightsPerThread = int64_t{1} << 16;

// Calls body(begin, end, share) for each thread's share of `count`. Shares are multiples of `unit`, except
// the last.
template <typename Tiles, typename Body>
void for_shares(int64_t count, int64_t unit, const Body& body) {
  const int64_t shares = thread_shares(count);
  at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; ++share) {
      const int64_t begin = std::min(round_up(count * share / shares, unit), count);
      const int64_t end = std::min(round_up(count * (share + 1) / shares, unit), count);
      if (begin < end) body(begin, end, share);
    }
    Tiles::release();
  });
}

// out_MN = left_MK B. pack(first, begin, end, columns, packed) packs the columns [first + begin, first + end)
// of B. They belong to the `columns` columns from `first` on.
template <typename Tiles, typename Scalar, typename Out, typename Pack>
void multiply_rows(const Scalar* left_MK, int64_t M, int64_t K, int64_t N, const Pack& pack,
                   const at::TensorOptions& options, Out* out_MN) {
  using Real = typename Tiles::Real;
  constexpr bool kDirect = std::is_same_v<Out, Real>;
  const auto shape = Tiles::shape();
  const int64_t most =
      std::max(kRightNumbers / std::max<int64_t>(K, 1) / shape.columns, int64_t{1}) * shape.columns;
  const int64_t chunk = std::min(most, N), shares = thread_shares(M);
  const BufferParts<typename Tiles::Packed> right(1, Tiles::right_size(K, chunk), options);
  const BufferParts<typename Tiles::Packed> left(
      shares, Tiles::template left_size<Order::kRows>(Tiles::kLargestBlock, K), options);
  const BufferParts<Real> sums(shares, kDirect ? 0 : Tiles::kLargestBlock * chunk, options);
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t columns = std::min(chunk, N - first),
                  panels = round_up(columns, shape.columns) / shape.columns;
    at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
      pack(first, begin * shape.columns, std::min(columns, end * shape.columns), columns, right.of(0));
    });
    for_shares<Tiles>(M, shape.rows, [&](int64_t begin, int64_t end, int64_t share) {
      const int64_t step = even_part(end - begin, Tiles::kLargestBlock, shape.rows);
      for (int64_t m = begin; m < end; m += step) {
        const int64_t rows = std::min(step, end - m);
        pack_left_rows<Tiles>([&](int64_t n) { return left_MK + (m + n) * K; }, rows, K, left.of(share));
        Out* out = out_MN + m * N + first;
        if constexpr (kDirect) {
          Tiles::template multiply<Order::kRows>(left.of(share), right.of(0), rows, columns, K, out, N,
                                                 false);
        } else {
          Real* sum = sums.of(share);
          Tiles::template multiply<Order::kRows>(left.of(share), right.of(0), rows, columns, K, sum, columns,
                                                 false);
          run_widest([&] {
            for (int64_t n = 0; n < rows; ++n) copy_converted(sum + n * columns, out + n * N, columns);
          });
        }
      }
    });
  }
}

// y_TN = x_TD weight_ND^T
template <typename Tiles, typename Scalar, typename Out>
void multiply_by_panels(const Scalar* x_TD, const Scalar* weight_ND, int64_t T, int64_t D, int64_t N,
                        const at::TensorOptions& options, Out* y_TN) {
  using Real = typename Tiles::Real;
  const int64_t width = Tiles::shape().columns, panels = round_up(N, width) / width;
  const int64_t left_block = Tiles::template left_size<Order::kRows>(T, kTileDepth);
  const RightSide<Scalar> weight_DN{weight_ND, D, true};
  const BufferParts<typename Tiles::Packed> left(1, round_up(D, kTileDepth) / kTileDepth * left_block,
                                                 options);
  for (int64_t k = 0; k < D; k += kTileDepth)
    pack_left_rows<Tiles>([&](int64_t t) { return x_TD + t * D + k; }, T, std::min(kTileDepth, D - k),
                          left.of(0) + k / kTileDepth * left_block);
  const int64_t grain = std::max<int64_t>(kWeightsPerThread / std::max<int64_t>(width * D, 1), 1);
  at::parallel_for(0, panels, grain, [&](int64_t begin, int64_t end) {
    const BufferParts<typename Tiles::Packed> right(1, Tiles::right_size(kTileDepth, width), options);
    const BufferParts<Real> sums(1, T * width, options);
    for (int64_t first = begin * width; first < std::min(end * width, N); first += width) {
      const int64_t columns = std::min(width, N - first);
      multiply_right_side<Tiles>({left.of(0), left_block, T, D}, weight_DN, first, columns, right.of(0),
                                 sums.of(0), width,
                                 weight_DN.rows(0, std::min(kTileDepth, D), first + width, width));
      run_widest([&] {
        for (int64_t t = 0; t < T; ++t) copy_converted(sums.of(0) + t * width, y_TN + t * N + first, columns);
      });
    }
    Tiles::release();
  });
}

// out_MN = left_KM^T right_KN
template <typename Scalar, typename Tiles>
void multiply_columns(const Scalar* left_KM, const Scalar* right_KN, int64_t M, int64_t K, int64_t N,
                      const at::TensorOptions& options, Scalar* out_MN) {
  using Real = typename Tiles::Real;
  constexpr bool kDirect = std::is_same_v<Scalar, Real>;
  const int64_t shares = thread_shares(M);
  using Buffers = OuterSumBuffers<Tiles>;
  const BufferParts<typename Tiles::Packed> left(shares, Buffers::left_size(K), options);
  const BufferParts<typename Tiles::Packed> right(shares, Buffers::right_size(K, N), options);
  const BufferParts<Real> sums(shares, kDirect ? 0 : Buffers::sum_size(K, M, N), options);
  for_shares<Tiles>(M, Tiles::shape().rows, [&](int64_t begin, int64_t end, int64_t share) {
    sum_outer_products([&](int64_t k) { return left_KM + k * M; },
                       [&](int64_t k) { return right_KN + k * N; }, K, begin, end, N,
                       Buffers{left.of(share), right.of(share), sums.of(share)}, OuterSum<Scalar>{out_MN});
  });
}

// y = x W^T on packed tiles. It saves only its inputs. A bf16 product is formed in fp32 and rounded once.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    const Tensor x_TD = x.reshape({-1, x.size(-1)}).contiguous();
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return multiply_transposed_cpu(x_TD, weight.contiguous(), weight.scalar_type()).view(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Tensor grad_y_TN = grads[0].reshape({-1, weight.size(0)}).contiguous();
    Tensor grad_x, grad_weight;
    if (context->needs_input_grad(0)) grad_x = multiply_cpu(grad_y_TN, weight.contiguous()).view(x.sizes());
    if (context->needs_input_grad(1))
      grad_weight = multiply_left_transposed_cpu(grad_y_TN, x.reshape({-1, x.size(-1)}).contiguous());
    return {grad_x, grad_weight};
  }
};

void check_linear(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "linear: expected x [..., D] and weight [N, D], got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "linear: expected one dtype, got x ", x.scalar_type(),
              " and weight ", weight.scalar_type());
}

}  // namespace

Tensor multiply_transposed_cpu(const Tensor& x_TD, const Tensor& weight_ND, at::ScalarType type) {
  RECORD_FUNCTION("dtopp::multiply_transposed", (Operands{x_TD, weight_ND}));
  const int64_t T = x_TD.size(0), D = x_TD.size(1), N = weight_ND.size(0);
  Tensor y_TN = at::empty({T, N}, x_TD.options().dtype(type));
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    using Scalar = decltype(scalar);
    using Tiles = decltype(tiles);
    const Scalar *x = x_TD.const_data_ptr<Scalar>(), *weight = weight_ND.const_data_ptr<Scalar>();
    const auto pack = [&](int64_t first, int64_t begin, int64_t end, int64_t columns, auto* packed) {
      Tiles::pack_right_transposed(weight + first * D, D, D, columns, begin, end, packed);
    };
    const auto multiply_into = [&](auto* y) {
      if (T < kPanelRows) return multiply_by_panels<Tiles>(x, weight, T, D, N, x_TD.options(), y);
      multiply_rows<Tiles>(x, T, D, N, pack, x_TD.options(), y);
    };
    if (type == x_TD.scalar_type()) return multiply_into(y_TN.mutable_data_ptr<Scalar>());
    multiply_into(y_TN.mutable_data_ptr<typename Tiles::Real>());
  });
  RECORD_OUTPUTS(at::TensorList(y_TN));
  return y_TN;
}

Tensor multiply_cpu(const Tensor& grad_y_TN, const Tensor& weight_ND) {
  RECORD_FUNCTION("dtopp::multiply", (Operands{grad_y_TN, weight_ND}));
  const int64_t T = grad_y_TN.size(0), N = grad_y_TN.size(1), D = weight_ND.size(1);
  Tensor grad_x_TD = at::empty({T, D}, grad_y_TN.options());
  dispatch(grad_y_TN, [&](auto scalar, auto tiles) {
    using Scalar = decltype(scalar);
    using Tiles = decltype(tiles);
    const Scalar* weight = weight_ND.const_data_ptr<Scalar>();
    const auto pack = [&](int64_t first, int64_t begin, int64_t end, int64_t columns, auto* packed) {
      Tiles::pack_right_rows([&](int64_t n) { return weight + n * D + first; }, N, columns, begin, end,
                             packed);
    };
    multiply_rows<Tiles>(grad_y_TN.const_data_ptr<Scalar>(), T, N, D, pack, grad_y_TN.options(),
                         grad_x_TD.mutable_data_ptr<Scalar>());
  });
  RECORD_OUTPUTS(at::TensorList(grad_x_TD));
  return grad_x_TD;
}

Tensor multiply_left_transposed_cpu(const Tensor& grad_y_TN, const Tensor& x_TD) {
  RECORD_FUNCTION("dtopp::multiply_left_transposed", (Operands{grad_y_TN, x_TD}));
  const int64_t T = grad_y_TN.size(0), N = grad_y_TN.size(1), D = x_TD.size(1);
  Tensor grad_weight_ND = at::empty({N, D}, x_TD.options());
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    using Scalar = decltype(scalar);
    multiply_columns<Scalar, decltype(tiles)>(grad_y_TN.const_data_ptr<Scalar>(),
                                              x_TD.const_data_ptr<Scalar>(), N, T, D, x_TD.options(),
                                              grad_weight_ND.mutable_data_ptr<Scalar>());
  });
  RECORD_OUTPUTS(at::TensorList(grad_weight_ND));
  return grad_weight_ND;
}

bool has_bf16_matmul(const at::Device& device) { return !device.is_cpu() || has_avx512_bf16() || has_amx(); }

bool has_amx() {
  static const bool has = at::native::cpublas::could_pack(at::kBFloat16);
  return has;
}

bool multiplies_on_tiles(const Tensor& x) {
  if (!x.is_cpu()) return false;
  if (x.scalar_type() == at::kBFloat16) return !has_bf16_matmul(x.device());
  return x.scalar_type() == at::kFloat;
}

Tensor linear(const Tensor& x, const Tensor& weight) {
  check_linear(x, weight);
  return multiplies_on_tiles(x) ? LinearFunction::apply(x, weight) : at::linear(x, weight);
}

std::vector<Tensor> linear_by_row(const Tensor& x_TD, at::TensorList weights, at::ScalarType type) {
  for (const Tensor& weight_ND : weights) check_linear(x_TD, weight_ND);
  if (DotProducts::multiply_rows_of(x_TD, x_TD.size(0))) return multiply_by_dot_products(x_TD, weights, type);
  const bool converts = type != x_TD.scalar_type();
  std::vector<Tensor> products;
  for (const Tensor& weight_ND : weights) {
    if (multiplies_on_tiles(x_TD) || (converts && x_TD.is_cpu()))
      products.push_back(multiply_transposed_cpu(x_TD.contiguous(), weight_ND.contiguous(), type));
    else
      products.push_back(converts ? at::mm(x_TD, weight_ND.t(), type) : at::linear(x_TD, weight_ND));
  }
  return products;
}

}  // namespace dtopp::ops
