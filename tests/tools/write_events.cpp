// Writes a run's metrics as dtopp does, for reading back with TensorBoard:
//   write_events DIRECTORY RESUME_STEP FIRST_STEP LAST_STEP
// Step s has train/loss 1 / s + RESUME_STEP and moe/threshold 0.1 s. RESUME_STEP has the meaning that it has
// in MetricsWriter.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "dtopp/runs/metrics.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: write_events DIRECTORY RESUME_STEP FIRST_STEP LAST_STEP\n");
    return 2;
  }
  try {
    const int64_t resume_step = std::atoll(argv[2]);
    dtopp::runs::MetricsWriter writer(argv[1], resume_step, /*tensorboard=*/true);
    for (int64_t step = std::atoll(argv[3]); step <= std::atoll(argv[4]); ++step) {
      const auto s = static_cast<double>(step);
      writer.write({step,
                    step * 128,
                    1.0e9 + 0.25 * s,
                    {{"train/loss", 1 / s + static_cast<double>(resume_step)}, {"moe/threshold", 0.1 * s}}});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_events: %s\n", error.what());
    return 1;
  }
  return 0;
}
