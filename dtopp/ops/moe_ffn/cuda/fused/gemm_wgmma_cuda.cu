// Hopper: one thread block per SM, which processes its share of the tiles. One warp group loads operands; two
// multiply, half of the rows each. They communicate through a ring of stages in shared memory:
//
//   warp group 0      loads  --> stage 0..3 -->  warp groups 1 and 2    multiply
//                            <-- "empty"    <--
//
// Each stage has one barrier that signals "full" and one that signals "empty". Loading continues while a
// tile's sums are processed.
#include "dtopp/ops/moe_ffn/cuda/fused/gemm_kernels_cuda.h"
#include "dtopp/ops/moe_ffn/cuda/fused/tiles_cuda.h"

namespace dtopp::ops::cuda {

// Wraps Hopper's warp-group matrix instruction for bf16 with fp32 sums. The tests provide the same functions
// for a CPU (tests/ops/cuda/async_on_host.h).

// Describes an operand [M, K] (or [N, K]): its beginning, the distance between groups of 8 rows and the
// distance between blocks of 64 columns. K-major: the rows belong to M and the columns to K; a block is wider
// than the instruction, and its distance is ignored. MN-major ("transposed"): the rows belong to K and the
// columns to M.
__device__ inline uint64_t wgmma_operand(uint32_t begin, uint32_t group_bytes, uint32_t block_bytes) {
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFFU) >> 4); };
  constexpr uint64_t kSwizzle128 = 1;
  return field(begin) | field(block_bytes) << 16 | field(group_bytes) << 32 | kSwizzle128 << 62;
}

#if defined(__CUDACC__)

// Required before the first instruction, and before the next instruction on sums in progress.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes a group of the instructions since the last call.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all groups except the last kGroups are complete. Do not access the sums while a group that
// writes them is in progress.
template <int kGroups>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Keeps the compiler from moving uses of the sums across this point. Call it before the first instruction and
// after the last wait.
__device__ inline void keep_in_registers(float (&sums)[kWgmmaSums]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

#define DTOPP_SUMS_8(i)                                                                      \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define DTOPP_SUMS_32(i) DTOPP_SUMS_8(i), DTOPP_SUMS_8(i + 8), DTOPP_SUMS_8(i + 16), DTOPP_SUMS_8(i + 24)

// sums (+)= A B^T. The warp group starts it, and wgmma_wait completes it. Thread t holds the following sums,
// for i and h in {0, 1}:
//
//   sums[4 j + 2 h + i]:  row 16 (t / 32) + 8 h + t % 32 / 4,  column 8 j + 2 (t % 4) + i
template <bool kTransposedA, bool kTransposedB>
__device__ inline void wgmma(float (&sums)[kWgmmaSums], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n"
      "}\n"
      : DTOPP_SUMS_32(0), DTOPP_SUMS_32(32), DTOPP_SUMS_32(64), DTOPP_SUMS_32(96)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA ? 1 : 0),
        "n"(kTransposedB ? 1 : 0));
}

#undef DTOPP_SUMS_8
#undef DTOPP_SUMS_32

#endif

namespace {

constexpr int kMultiplyingGroups = kTileRows / kWgmmaRows;
constexpr int kThreads = (1 + kMultiplyingGroups) * kWarpGroup;
constexpr int kStages = 4;
constexpr int kStagesUnderWay = 2;  // copies in flight before a thread waits for the oldest one

// Registers per thread. A block has 65,536 in total. At launch each thread has 168.
constexpr int kLoadingRegisters = 72,
              kMultiplyingRegisters = (3 * 168 - kLoadingRegisters) / kMultiplyingGroups;
static_assert(kLoadingRegisters % 8 == 0 && kMultiplyingRegisters % 8 == 0);

// A position in the ring: the stage, and the parity of the phase in which it is filled.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Addresses in shared memory: the stages, at multiples of 1,024 bytes, then the barriers, then the schedule's
// table.
template <uint32_t kStageBytes>
struct Ring {
  static constexpr uint32_t kBarriers = kStages * kStageBytes, kTable = kBarriers + 2 * kStages * 8;
  uint32_t begin = shared_address(shared_memory());

  __device__ uint32_t stage(int s) const { return begin + s * kStageBytes; }
  __device__ uint32_t full(int s) const { return begin + kBarriers + s * 8; }
  __device__ uint32_t empty(int s) const { return begin + kBarriers + (kStages + s) * 8; }
};

template <typename Form, typename Epilogue>
struct Shape {
  static_assert(Epilogue::kInOrder == Form::kInOrder);
  using Tiles = Schedule<Form::kOverPairs, kTileRows, Epilogue::kPaired ? kWgmmaColumns / 2 : kWgmmaColumns>;
  using Loader = TileLoader<Form, Epilogue::kPaired, kTileRows, kWgmmaColumns, kWgmmaSlice, kWarpGroup>;
  using Stages = Ring<Loader::kStageBytes>;
  static constexpr bool kLeftByColumns = Form::kOverPairs,
                        kRightByColumns = Form::kOverPairs || Form::kRightTransposed;

  static size_t shared_bytes(int64_t experts) { return Stages::kTable + Tiles::bytes(experts); }
};

template <typename Shape>
__device__ void load_tiles(const Gemm& in, const typename Shape::Tiles& tiles,
                           const typename Shape::Stages& ring) {
  Turn filling, filled;
  int64_t steps = 0;
  const auto hand_over = [&] {
    fence_for_wgmma();
    arrive(ring.full(filled.stage));
    filled.advance();
  };
  for (int n = static_cast<int>(blockIdx.x); n < tiles.tiles(); n += static_cast<int>(gridDim.x)) {
    const Tile tile = tiles[n];
    typename Shape::Loader loader(in, tile, static_cast<int>(threadIdx.x));
    for (int64_t depth = tile.depth_begin; depth < tile.depth_end; depth += kTileDepth) {
      wait_for_phase(ring.empty(filling.stage), filling.parity ^ 1);
      loader.load(ring.stage(filling.stage), depth);
      commit_copies();
      filling.advance();
      if (++steps > kStagesUnderWay) {
        wait_for_copies<kStagesUnderWay>();
        hand_over();
      }
      loader.look_ahead(depth + kTileDepth);
    }
  }
  wait_for_copies<0>();
  for (int64_t left = steps < kStagesUnderWay ? steps : kStagesUnderWay; left > 0; --left) hand_over();
}

// Returns the operand of the stage's instruction k, which sums over 16 numbers. They lie 16 k columns further
// on in each row, or 16 k rows further on if kByColumns.
template <bool kByColumns>
__device__ uint64_t operand_of_step(uint32_t operand, int k) {
  constexpr uint32_t kStep = kWgmmaDepth * (kByColumns ? kSwizzledRowBytes : sizeof(Bfloat16));
  constexpr uint32_t kNoBlocks = 16;
  return wgmma_operand(operand + k * kStep, kSwizzledGroupBytes,
                       kByColumns ? kTileDepth * kSwizzledRowBytes : kNoBlocks);
}

// Starts the products of one stage for one warp group's 64 rows, without waiting for them.
template <typename Shape>
__device__ void multiply_stage(uint32_t stage, int group, bool first, float (&sums)[kWgmmaSums]) {
  static_assert(kTileDepth == kWgmmaRows);  // a block of 64 columns has as many bytes as 64 rows
  const uint32_t left = stage + group * kWgmmaRows * kSwizzledRowBytes,
                 right = stage + Shape::Loader::kLeftBytes;
#pragma unroll
  for (int k = 0; k < kTileDepth / kWgmmaDepth; ++k)
    wgmma<Shape::kLeftByColumns, Shape::kRightByColumns>(
        sums, operand_of_step<Shape::kLeftByColumns>(left, k),
        operand_of_step<Shape::kRightByColumns>(right, k), !first || k > 0);
}

template <typename Shape, typename Epilogue>
__device__ void multiply_tiles(const Gemm& in, const typename Shape::Tiles& tiles,
                               const typename Shape::Stages& ring, const Epilogue& epilogue) {
  const int group = static_cast<int>(threadIdx.x) / kWarpGroup - 1;
  Turn turn, done;
  const auto multiply_next = [&](bool first, float(&sums)[kWgmmaSums]) {
    wait_for_phase(ring.full(turn.stage), turn.parity);
    wgmma_fence();
    multiply_stage<Shape>(ring.stage(turn.stage), group, first, sums);
    wgmma_commit();
    turn.advance();
  };
  const auto give_back = [&] {
    if (lane_index() == 0) arrive(ring.empty(done.stage));
    done.advance();
  };
  const int blocks = static_cast<int>(gridDim.x);
  int n = static_cast<int>(blockIdx.x);
  if (n >= tiles.tiles()) return;
  Tile tile = tiles[n];
  while (true) {
    const Fragments at{tile, group * kWgmmaRows + warp_index() % 4 * 16, tile.first_column,
                       static_cast<int>(tile.first_column / kWgmmaSlice)};
    if constexpr (Epilogue::kReads) epilogue.template prefetch<kWgmmaColumns>(in, at);
    n += blocks;
    Tile next{};  // looked up while products are in progress
    float sums[kWgmmaSums];
    if (tile.depth_begin < tile.depth_end) {
      multiply_next(true, sums);
      for (int64_t depth = tile.depth_begin + kTileDepth; depth < tile.depth_end; depth += kTileDepth) {
        multiply_next(false, sums);
        wgmma_wait<1>();
        give_back();
      }
      if (n < tiles.tiles()) next = tiles[n];
      wgmma_wait<0>();
      keep_in_registers(sums);
      give_back();
    } else {
      if (n < tiles.tiles()) next = tiles[n];
#pragma unroll
      for (float& sum : sums) sum = 0;
    }
    epilogue(in, at, sums);
    if (n >= tiles.tiles()) return;
    tile = next;
  }
}

template <typename Form, typename Epilogue>
__global__ void __launch_bounds__(kThreads, 1) multiply_kernel(Gemm in, Epilogue epilogue) {
  using Shape = Shape<Form, Epilogue>;
  const typename Shape::Stages ring;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      make_barrier(ring.full(s), kWarpGroup);
      make_barrier(ring.empty(s), kMultiplyingGroups * kWarpGroup / kWarp);
    }
  }
  const typename Shape::Tiles tiles(in, reinterpret_cast<int32_t*>(shared_memory() + Shape::Stages::kTable));
  __syncthreads();
  if (threadIdx.x < kWarpGroup) {
    give_up_registers<kLoadingRegisters>();
    load_tiles<Shape>(in, tiles, ring);
  } else {
    take_registers<kMultiplyingRegisters>();
    multiply_tiles<Shape>(in, tiles, ring, epilogue);
  }
}

}  // namespace

template <typename Form, typename Epilogue>
void multiply_by_wgmma(const Gemm& gemm, const Epilogue& epilogue, const Device& device, Stream stream) {
  using Shape = Shape<Form, Epilogue>;
  launch({"moe_ffn", stream, device.multiprocessors, kThreads, Shape::shared_bytes(gemm.experts)},
         multiply_kernel<Form, Epilogue>, gemm, epilogue);
}
DTOPP_FOR_FUSED_GEMMS(multiply_by_wgmma)

}  // namespace dtopp::ops::cuda
