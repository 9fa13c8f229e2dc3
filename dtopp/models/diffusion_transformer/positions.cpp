#include "dtopp/models/diffusion_transformer/positions.h"

namespace dtopp::models {
namespace {

constexpr double kPeriodBase = 10000.0;

// base^(-i / count) for i < count, f64.
at::Tensor frequencies(int64_t count, const at::Device& device) {
  const at::Tensor i = at::arange(count, at::device(device).dtype(at::kDouble));
  return at::pow(kPeriodBase, -i / static_cast<double>(count));
}

// Row and column of each patch, f64 [grid * grid].
struct PatchCoordinates {
  at::Tensor row_P, column_P;
};

PatchCoordinates patch_coordinates(int64_t grid, const at::Device& device) {
  const at::Tensor along = at::arange(grid, at::device(device).dtype(at::kDouble));
  return {along.repeat_interleave(grid), along.repeat({grid})};
}

at::Tensor sines_and_cosines(const at::Tensor& coordinate_P, int64_t size) {
  const at::Tensor angle = at::outer(coordinate_P, frequencies(size / 2, coordinate_P.device()));
  return at::cat({angle.sin(), angle.cos()}, 1);
}

}  // namespace

RotaryTable axial_rotary_table(int64_t images, int64_t text, int64_t grid, int64_t head_size,
                               const at::Device& device) {
  const PatchCoordinates at_patch = patch_coordinates(grid, device);
  const at::Tensor frequency = frequencies(head_size / 4, device);
  const at::Tensor angle =
      at::cat({at::outer(at_patch.row_P, frequency), at::outer(at_patch.column_P, frequency)}, 1)
          .repeat({1, 2});
  const at::Tensor angle_SK = at::cat({at::zeros({text, head_size}, angle.options()), angle});
  const auto of_all = [&](const at::Tensor& table_SK) { return table_SK.to(at::kFloat).repeat({images, 1}); };
  return {of_all(angle_SK.cos()), of_all(angle_SK.sin())};
}

at::Tensor sincos_table(int64_t grid, int64_t hidden_size, const at::Device& device) {
  const PatchCoordinates at_patch = patch_coordinates(grid, device);
  return at::cat({sines_and_cosines(at_patch.column_P, hidden_size / 2),
                  sines_and_cosines(at_patch.row_P, hidden_size / 2)},
                 1)
      .to(at::kFloat);
}

at::Tensor timestep_features(const at::Tensor& t_B) {
  const at::Tensor angle =
      at::outer(t_B.to(at::kDouble) * 1000.0, frequencies(kTimestepFeatures / 2, t_B.device()));
  return at::cat({angle.cos(), angle.sin()}, 1).to(at::kFloat);
}

}  // namespace dtopp::models
