#include "dtopp/ops/matrix_tiles.h"

#include <gtest/gtest.h>

#include "dtopp/ops/torch.h"

namespace dtopp {
namespace {

template <typename Real>
at::Tensor random(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}, at::TensorOptions().dtype(c10::CppTypeToScalarType<Real>::value));
}

template <typename Real>
at::Tensor room(int64_t numbers) {
  return at::full({numbers}, std::nan(""), at::TensorOptions().dtype(c10::CppTypeToScalarType<Real>::value));
}

struct Shape {
  int64_t M, N, K;
};

// Around the edges of tiles, strips, panels and blocks of every instruction set.
const std::vector<Shape> kShapes = {{1, 1, 1},    {14, 32, 256}, {15, 33, 257}, {13, 31, 255}, {6, 16, 16},
                                    {29, 65, 40}, {5, 70, 600},  {112, 8, 512}, {3, 4, 0},     {0, 4, 4}};

// Both ways to pack each operand give A B, written over C or added to it, and nothing beside C is touched.
template <typename Real, Order kOrder>
void expect_product(const Shape& shape, bool transposed_right, bool add) {
  SCOPED_TRACE(testing::Message() << shape.M << " x " << shape.N << " x " << shape.K);
  const auto [M, N, K] = shape;
  const at::Tensor a = random<Real>(M, K), b = random<Real>(K, N), c = random<Real>(M, N + 3);
  using Tiles = VectorTiles<Real>;
  const at::Tensor left = room<Real>(Tiles::template left_size<kOrder>(M, K));
  const at::Tensor right = room<Real>(Tiles::right_size(K, N));
  Real *left_data = left.mutable_data_ptr<Real>(), *right_data = right.mutable_data_ptr<Real>();
  const at::Tensor a_KM = a.t().contiguous(), b_NK = b.t().contiguous();
  if (kOrder == Order::kRows) {
    for (int64_t m = 0; m < M; ++m) Tiles::pack_left_row(a.const_data_ptr<Real>() + m * K, m, M, K, left_data);
  } else {
    Tiles::pack_left_columns([&](int64_t k) { return a_KM.const_data_ptr<Real>() + k * M; }, M, K, left_data);
  }
  if (transposed_right) {
    Tiles::pack_right_transposed(b_NK.const_data_ptr<Real>(), K, N, 0, N, right_data);
  } else {
    Tiles::pack_right_rows([&](int64_t k) { return b.const_data_ptr<Real>() + k * N; }, K, N, 0, N, right_data);
  }
  const at::Tensor expected = c.to(at::kDouble).clone();
  const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  expected.narrow(1, 0, N).copy_(add ? expected.narrow(1, 0, N) + product : product);
  Tiles::template multiply<kOrder>(left_data, right_data, M, N, K, c.mutable_data_ptr<Real>(), N + 3, add);
  EXPECT_TRUE(at::allclose(c.to(at::kDouble), expected, 1e-5, 1e-4));
}

template <typename Real>
void expect_products() {
  at::manual_seed(3);
  for (const Shape& shape : kShapes) {
    for (const bool transposed_right : {false, true}) {
      for (const bool add : {false, true}) {
        expect_product<Real, Order::kRows>(shape, transposed_right, add);
        expect_product<Real, Order::kColumns>(shape, transposed_right, add);
      }
    }
  }
}

TEST(MatrixTiles, multiply_floats) { expect_products<float>(); }
TEST(MatrixTiles, multiply_doubles) { expect_products<double>(); }

TEST(MatrixTiles, a_part_of_the_panels_can_be_packed_by_itself) {
  const int64_t N = 100, K = 300, columns = VectorTiles<float>::shape().columns;
  const at::Tensor b_NK = random<float>(N, K);
  const at::Tensor whole = room<float>(VectorTiles<float>::right_size(K, N)), parts = whole.clone();
  const auto* from = b_NK.const_data_ptr<float>();
  VectorTiles<float>::pack_right_transposed(from, K, N, 0, N, whole.mutable_data_ptr<float>());
  VectorTiles<float>::pack_right_transposed(from, K, N, columns, N, parts.mutable_data_ptr<float>());
  VectorTiles<float>::pack_right_transposed(from, K, N, 0, columns, parts.mutable_data_ptr<float>());
  EXPECT_TRUE(whole.equal(parts));
}

}  // namespace
}  // namespace dtopp
