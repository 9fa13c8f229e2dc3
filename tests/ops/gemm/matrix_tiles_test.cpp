#include <gtest/gtest.h>

#include "dtopp/ops/core/torch.h"
#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops::matrix_tiles_test {
namespace {

template <typename Number>
at::TensorOptions options() {
  return at::TensorOptions().dtype(c10::CppTypeToScalarType<Number>::value);
}

// Memory filled with NaN, so that a read of an unwritten value shows.
template <typename Number>
at::Tensor room(int64_t numbers) {
  return at::full({numbers}, std::nan(""), options<Number>());
}

struct Shape {
  int64_t M, N, K;
};

// Sizes around the edges of tiles, strips, panels and blocks of every instruction set.
const std::vector<Shape> kShapes = {{1, 1, 1},   {14, 32, 256}, {15, 33, 257}, {13, 31, 255},
                                    {6, 16, 16}, {29, 65, 40},  {5, 70, 600},  {112, 8, 512},
                                    {3, 4, 0},   {0, 4, 4},     {144, 64, 7},  {130, 128, 64}};

template <typename Tiles, Order kOrder, typename Scalar>
void pack_left(const at::Tensor& a_MK, typename Tiles::Packed* out) {
  const int64_t M = a_MK.size(0), K = a_MK.size(1);
  const at::Tensor a_KM = a_MK.t().contiguous();
  if (kOrder == Order::kColumns) {
    Tiles::pack_left_columns([&](int64_t k) { return a_KM.const_data_ptr<Scalar>() + k * M; }, M, K, out);
    return;
  }
  for (int64_t m = 0; m < M; ++m) {
    Tiles::pack_left_row(a_MK.const_data_ptr<Scalar>() + m * K, m, M, K, out);
  }
}

template <typename Tiles, typename Scalar>
void pack_right(const at::Tensor& b_KN, bool transposed, typename Tiles::Packed* out) {
  const int64_t K = b_KN.size(0), N = b_KN.size(1);
  if (transposed) {
    const at::Tensor b_NK = b_KN.t().contiguous();
    Tiles::pack_right_transposed(b_NK.const_data_ptr<Scalar>(), K, K, N, 0, N, out);
    return;
  }
  Tiles::pack_right_rows([&](int64_t k) { return b_KN.const_data_ptr<Scalar>() + k * N; }, K, N, 0, N, out);
}

// A B overwrites C or is added to it, and no value outside C changes.
template <typename Tiles, Order kOrder, typename Scalar>
void expect_product(const Shape& shape, bool transposed_right, bool add) {
  SCOPED_TRACE(testing::Message() << shape.M << " x " << shape.N << " x " << shape.K);
  using Packed = typename Tiles::Packed;
  using Real = typename Tiles::Real;
  const auto [M, N, K] = shape;
  const at::Tensor a = at::randn({M, K}).to(options<Scalar>()), b = at::randn({K, N}).to(options<Scalar>());
  const at::Tensor c = at::randn({M, N + 3}, options<Real>());
  const at::Tensor expected = c.to(at::kDouble);
  const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  expected.narrow(1, 0, N).copy_(add ? expected.narrow(1, 0, N) + product : product);

  const at::Tensor left = room<Packed>(Tiles::template left_size<kOrder>(M, K));
  const at::Tensor right = room<Packed>(Tiles::right_size(K, N));
  pack_left<Tiles, kOrder, Scalar>(a, left.mutable_data_ptr<Packed>());
  pack_right<Tiles, Scalar>(b, transposed_right, right.mutable_data_ptr<Packed>());
  Tiles::template multiply<kOrder>(left.const_data_ptr<Packed>(), right.const_data_ptr<Packed>(), M, N, K,
                                   c.mutable_data_ptr<Real>(), N + 3, add);
  EXPECT_TRUE(at::allclose(c.to(at::kDouble), expected, 1e-5, 1e-4));
}

template <typename Tiles, typename Scalar>
void expect_products() {
  at::manual_seed(3);
  for (const Shape& shape : kShapes) {
    for (const bool transposed_right : {false, true}) {
      for (const bool add : {false, true}) {
        expect_product<Tiles, Order::kRows, Scalar>(shape, transposed_right, add);
        expect_product<Tiles, Order::kColumns, Scalar>(shape, transposed_right, add);
      }
    }
  }
}

TEST(MatrixTiles, multiply_floats) { expect_products<VectorTiles<float>, float>(); }
TEST(MatrixTiles, multiply_doubles) { expect_products<VectorTiles<double>, double>(); }
TEST(MatrixTiles, multiply_bfloat16_in_float) { expect_products<VectorTiles<float>, c10::BFloat16>(); }

TEST(MatrixTiles, multiply_bfloat16_on_the_matrix_unit) {
  if (!MatrixUnit::available()) GTEST_SKIP() << "this machine has no matrix unit for bfloat16";
  expect_products<Bfloat16Tiles, c10::BFloat16>();
  MatrixUnit::release();
}

// Takes the tiles one by one from a left operand that ends with its last row.
TEST(MatrixTiles, finish_tiles_of_bfloat16) {
  if (!MatrixUnit::available()) GTEST_SKIP() << "this machine has no matrix unit for bfloat16";
  using Tiles = Bfloat16Tiles;
  for (const auto& [M, N, K] : kShapes) {
    const at::Tensor a = at::randn({M, K}).to(at::kBFloat16), b = at::randn({K, N}).to(at::kBFloat16);
    const at::Tensor left = room<c10::BFloat16>(M * Tiles::left_stride(K));
    const at::Tensor right = room<c10::BFloat16>(Tiles::right_size(K, N));
    const at::Tensor spare = room<c10::BFloat16>(Tiles::kStrip * Tiles::left_stride(K));
    pack_left<Tiles, Order::kRows, c10::BFloat16>(a, left.mutable_data_ptr<c10::BFloat16>());
    pack_right<Tiles, c10::BFloat16>(b, false, right.mutable_data_ptr<c10::BFloat16>());
    const at::Tensor c = at::full({M, N}, std::nan(""));
    Tiles::multiply_finish(
        left.const_data_ptr<c10::BFloat16>(), right.const_data_ptr<c10::BFloat16>(), M, N, K,
        [&](const float* tile, int64_t m, int64_t rows, int64_t n, int64_t columns) {
          for (int64_t i = 0; i < rows; ++i) {
            std::copy_n(tile + i * Tiles::kPanel, columns,
                        c.mutable_data_ptr<float>() + (m + i) * c.size(1) + n);
          }
        },
        spare.mutable_data_ptr<c10::BFloat16>());
    EXPECT_TRUE(at::allclose(c.to(at::kDouble), at::mm(a.to(at::kDouble), b.to(at::kDouble)), 1e-5, 1e-4))
        << M << " x " << N << " x " << K;
  }
  MatrixUnit::release();
}

TEST(MatrixTiles, a_part_of_the_panels_can_be_packed_by_itself) {
  using Tiles = VectorTiles<float>;
  const int64_t N = 100, K = 300, columns = Tiles::shape().columns;
  const at::Tensor b_NK = at::randn({N, K});
  const at::Tensor whole = room<float>(Tiles::right_size(K, N)), parts = whole.clone();
  const auto* from = b_NK.const_data_ptr<float>();
  Tiles::pack_right_transposed(from, K, K, N, 0, N, whole.mutable_data_ptr<float>());
  Tiles::pack_right_transposed(from, K, K, N, columns, N, parts.mutable_data_ptr<float>());
  Tiles::pack_right_transposed(from, K, K, N, 0, columns, parts.mutable_data_ptr<float>());
  EXPECT_TRUE(whole.equal(parts));
}

}  // namespace
}  // namespace dtopp::ops::matrix_tiles_test
