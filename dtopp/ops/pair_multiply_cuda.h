// The two kernels behind pair_products_cuda.h: one product of all experts, finished in registers.
#pragma once

#include "dtopp/ops/pair_finishes_cuda.h"

namespace dtopp::cuda {

constexpr int kTileRows = 128;

// Compute capability 9.0: tiles of 128 x 256.
template <bool kOverPairs, bool kRightTransposed, typename Finish>
void multiply_by_wgmma(const Product& product, const Finish& finish, const Device& device, Stream stream);

// 8.0 and above: tiles of 128 x 128.
template <bool kOverPairs, bool kRightTransposed, typename Finish>
void multiply_by_mma(const Product& product, const Finish& finish, const Device& device, Stream stream);

// Columns of a row that a warp finishes together: of one slice.
constexpr int kWgmmaSlice = kWgmmaColumns, kMmaSlice = 64;

#define DTOPP_FOR_PAIR_PRODUCTS(multiply)                                                              \
  template void multiply<false, false>(const Product&, const Activate&, const Device&, Stream);        \
  template void multiply<false, false>(const Product&, const Round&, const Device&, Stream);           \
  template void multiply<false, true>(const Product&, const ActivateBackward&, const Device&, Stream); \
  template void multiply<false, true>(const Product&, const Round&, const Device&, Stream);            \
  template void multiply<true, true>(const Product&, const Round&, const Device&, Stream);

}  // namespace dtopp::cuda
