// One thread block per SM, which processes its share of the tiles. Every warp loads operands by asynchronous
// copies while earlier stages are multiplied, and computes 32 x 64 of a tile's sums.
#include <algorithm>

#include "dtopp/ops/moe_ffn/cuda/fused/gemm_kernels_cuda.h"
#include "dtopp/ops/moe_ffn/cuda/fused/tiles_cuda.h"

namespace dtopp::ops::cuda {

// Wraps the warp-level matrix instruction for bf16 with fp32 sums, for compute capability 8.0 and above. The
// tests provide the same functions for a CPU (tests/ops/cuda/async_on_host.h).

using Quad = uint32_t[4];

#if defined(__CUDACC__)

// Loads four 8 x 8 matrices. Lane l passes the address of row l % 8 of matrix l / 8, 16 bytes. It receives in
// out[m] the numbers 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix m, or of column l / 4 if kTransposed.
template <bool kTransposed>
__device__ void load_matrices(Quad& out, uint32_t row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  }
}

// sums += A B for A [16, 16] and B [16, 8], whose 8 x 8 matrices are laid out as load_matrices returns them.
// a holds the rows 0–7 and 8–15 of the columns 0–7, then of the columns 8–15. b_first and b_second hold the
// rows 0–7 and 8–15, transposed. Lane l holds in sums[2 h + i] the row l / 4 + 8 h and the column 2 (l % 4) +
// i.
__device__ inline void mma(float* sums, const Quad& a, uint32_t b_first, uint32_t b_second) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_first), "r"(b_second));
}

#endif

namespace {

constexpr int kColumns = 128;
constexpr int kRowWarps = 4, kColumnWarps = 2;
constexpr int kThreads = kRowWarps * kColumnWarps * kWarp;
constexpr int kWarpRows = kTileRows / kRowWarps, kWarpColumns = kColumns / kColumnWarps;
constexpr int kMostStages = 4;
constexpr int kDepth = 16;  // per instruction
constexpr int kFragmentColumns = 8, kFragments = kWarpColumns / kFragmentColumns;
static_assert(kWarpColumns == kMmaSlice);

template <typename Form, typename Epilogue>
struct Shape {
  static_assert(Epilogue::kInOrder == Form::kInOrder);
  using Tiles = Schedule<Form::kOverPairs, kTileRows, Epilogue::kPaired ? kColumns / 2 : kColumns>;
  using Loader = TileLoader<Form, Epilogue::kPaired, kTileRows, kColumns, kMmaSlice, kThreads>;
  static constexpr bool kLeftByColumns = Form::kOverPairs,
                        kRightByColumns = Form::kOverPairs || Form::kRightTransposed;
};

// Returns the address of this lane's row of four 8 x 8 matrices. They cover the rows [row, row + 16) and the
// depths [depth, depth + 16) of an operand. Consecutive matrices differ in row, or in depth if
// by_depth_first.
template <bool kByColumns>
__device__ uint32_t lane_row(uint32_t operand, int row, int depth, bool by_depth_first) {
  const int matrix = lane_index() / 8, within = lane_index() % 8;
  row += (by_depth_first ? matrix / 2 : matrix % 2) * 8;
  depth += (by_depth_first ? matrix % 2 : matrix / 2) * 8;
  if constexpr (kByColumns) {
    constexpr int kBlock = kSwizzledRowBytes / sizeof(Bfloat16);
    return operand + row / kBlock * (kTileDepth * kSwizzledRowBytes) +
           swizzled(depth + within, row % kBlock / kChunk);
  } else {
    return operand + swizzled(row + within, depth / kChunk);
  }
}

using Sums = float[kWarpRows / 16][kFragments * 4];

template <typename Shape>
__device__ void multiply_stage(uint32_t stage, int first_row, int first_column, Sums& sums) {
#pragma unroll
  for (int depth = 0; depth < kTileDepth; depth += kDepth) {
    Quad left[kWarpRows / 16], right[kFragments / 2];
#pragma unroll
    for (int m = 0; m < kWarpRows / 16; ++m)
      load_matrices<Shape::kLeftByColumns>(
          left[m], lane_row<Shape::kLeftByColumns>(stage, first_row + m * 16, depth, false));
#pragma unroll
    for (int n = 0; n < kFragments / 2; ++n)
      load_matrices<Shape::kRightByColumns>(
          right[n], lane_row<Shape::kRightByColumns>(stage + Shape::Loader::kLeftBytes, first_column + n * 16,
                                                     depth, true));
#pragma unroll
    for (int m = 0; m < kWarpRows / 16; ++m) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n)
        mma(&sums[m][4 * n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
    }
  }
}

template <typename Form, typename Epilogue>
__global__ void __launch_bounds__(kThreads, 1) multiply_kernel(Gemm in, Epilogue epilogue, int stages) {
  using Shape = Shape<Form, Epilogue>;
  constexpr uint32_t kStageBytes = Shape::Loader::kStageBytes;
  const uint32_t ring = shared_address(shared_memory());
  const typename Shape::Tiles tiles(in, reinterpret_cast<int32_t*>(shared_memory() + stages * kStageBytes));
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = warp_index() / kColumnWarps * kWarpRows,
            first_column = warp_index() % kColumnWarps * kWarpColumns;
  for (int n = static_cast<int>(blockIdx.x); n < tiles.tiles(); n += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles[n];
    typename Shape::Loader loader(in, tile, thread);
    int64_t loading = tile.depth_begin;
    int filling = 0;
    // Commits a group of copies in every step, empty ones at the end, because waiting counts groups.
    const auto load_next = [&] {
      if (loading < tile.depth_end) loader.load(ring + filling * kStageBytes, loading);
      commit_copies();
      loading += kTileDepth;
      loader.look_ahead(loading);
      filling = filling + 1 == stages ? 0 : filling + 1;
    };
    for (int s = 0; s < stages - 1; ++s) load_next();
    Sums sums = {};
    int stage = 0;
    for (int64_t depth = tile.depth_begin; depth < tile.depth_end; depth += kTileDepth) {
      wait_for_all_copies_but(stages - 2);
      __syncthreads();  // all threads have loaded this stage and read the next one to be filled
      load_next();
      multiply_stage<Shape>(ring + stage * kStageBytes, first_row, first_column, sums);
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    wait_for_copies<0>();
    __syncthreads();  // before the copies of the next tile
#pragma unroll
    for (int m = 0; m < kWarpRows / 16; ++m) {
      const int64_t column = (Epilogue::kPaired ? first_column / 2 : first_column) + tile.first_column;
      epilogue(in, Fragments{tile, first_row + m * 16, column, static_cast<int>(column / kMmaSlice)},
               sums[m]);
    }
  }
}

}  // namespace

template <typename Form, typename Epilogue>
void multiply_by_mma(const Gemm& gemm, const Epilogue& epilogue, const Device& device, Stream stream) {
  using Shape = Shape<Form, Epilogue>;
  constexpr size_t kStageBytes = Shape::Loader::kStageBytes;
  const size_t table = Shape::Tiles::bytes(gemm.experts);
  const auto stages =
      static_cast<int>(std::min<size_t>((device.shared_bytes - table) / kStageBytes, kMostStages));
  launch({"moe_ffn", stream, device.multiprocessors, kThreads, stages * kStageBytes + table},
         multiply_kernel<Form, Epilogue>, gemm, epilogue, stages);
}
DTOPP_FOR_FUSED_GEMMS(multiply_by_mma)

}  // namespace dtopp::ops::cuda
