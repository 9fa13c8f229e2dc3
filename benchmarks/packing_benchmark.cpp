// Times the loops that pack bfloat16 operands (dtopp/ops/core/bfloat16_loops.h) against a memcpy of the same
// bytes, both in the second-level cache. Prints one JSON line per packer and instruction set of this machine.
// Without AVX-512 only the scalar loops run, and the lines name them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "dtopp/ops/core/bfloat16_loops.h"

namespace {

namespace ops = dtopp::ops;

constexpr int64_t kK = 512, kN = 512;  // per operand: 512 KiB, and the same packed
constexpr int kRounds = 15, kCalls = 40;

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < kCalls; ++call) body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Operands {
  std::vector<c10::BFloat16> from = std::vector<c10::BFloat16>(kK * kN + 32);
  std::vector<float> floats = std::vector<float>(kK * kN / 2, 1.0F);  // the same number of bytes
  std::vector<c10::BFloat16> packed = std::vector<c10::BFloat16>(kN * (kK + ops::kPackedDepth) + 32);

  // Starts on a cache line, like the operators' buffers.
  c10::BFloat16* to() {
    return reinterpret_cast<c10::BFloat16*>((reinterpret_cast<uintptr_t>(packed.data()) + 63) / 64 * 64);
  }
};

// Times `body` in turn with memcpy, round by round. Bytes are counted as read.
void measure(const char* packer, const dtopp::ops::Bfloat16Loops& loops, Operands& operands,
             const std::function<void()>& body) {
  constexpr int64_t kBytes = kK * kN * static_cast<int64_t>(sizeof(c10::BFloat16));
  std::vector<double> seconds, copies, ratios;
  for (int round = 0; round < kRounds; ++round) {
    copies.push_back(seconds_of([&] {
      std::memcpy(static_cast<void*>(operands.to()), operands.from.data(), kBytes);
      asm volatile("" ::"r"(operands.to()) : "memory");
    }));
    seconds.push_back(seconds_of(body));
    ratios.push_back(copies.back() / seconds.back());
  }
  std::printf(
      R"({"packer": "%s", "instructions": "%s", "gb_per_s": %.2f, "memcpy_gb_per_s": %.2f, "of_memcpy": %.2f})"
      "\n",
      packer, loops.instructions, kBytes / median(seconds) / 1e9, kBytes / median(copies) / 1e9,
      median(ratios));
}

void measure_all(const dtopp::ops::Bfloat16Loops& loops, Operands& operands) {
  const c10::BFloat16* from = operands.from.data();
  c10::BFloat16* to = operands.to();
  measure("left columns, strips of 128", loops, operands, [&] {
    const c10::BFloat16* columns[ops::kPackedDepth];
    for (int64_t m = 0; m < kN; m += 128) {
      for (int64_t k = 0; k < kK; k += ops::kPackedDepth) {
        for (int64_t i = 0; i < ops::kPackedDepth; ++i) columns[i] = from + (k + i) * kN + m;
        loops.pack_left_columns(columns, ops::kPackedDepth, 128, to + m * (kK + ops::kPackedDepth) + k,
                                kK + ops::kPackedDepth);
      }
    }
  });
  measure("right rows", loops, operands, [&] {
    for (int64_t k = 0; k < kK; k += 2) {
      loops.pack_right_rows(from + k * kN, from + (k + 1) * kN, kN, to + k * ops::kPanelColumns,
                            kK * ops::kPanelColumns);
    }
  });
  measure("right transposed", loops, operands, [&] {
    for (int64_t n = 0; n < kN; n += 16) {
      loops.pack_right_transposed(from + n * kK, kK, 16, kK, to + n / 64 * 64 * kK + n % 64 * 2);
    }
  });
  measure("float to bfloat16", loops, operands,
          [&] { loops.convert(operands.floats.data(), to, static_cast<int64_t>(operands.floats.size())); });
}

}  // namespace

int main() {
  Operands operands;
  const auto all = dtopp::ops::all_bfloat16_loops();
  if (all.size() == 1) std::fprintf(stderr, "no AVX-512 here: only the scalar loops are measured\n");
  for (const dtopp::ops::Bfloat16Loops* loops : all) measure_all(*loops, operands);
}
