// The definition of a study, its base configuration and its arguments, parted by NUL.
#include "dtopp/study/definition.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto file = fuzz::write_scratch("study.yaml", input.part());
  fuzz::write_scratch("base.yaml", input.empty() ? "output: out\n" : input.part());
  std::vector<std::string> arguments;
  while (!input.empty() && arguments.size() < 8) arguments.push_back(input.part());
  fuzz::accepts([&] {
    const study::Study study = study::load_study(file, arguments);
    const size_t runs = study.points.size() * study.variants.size() * std::max<size_t>(study.seeds.size(), 1);
    if (runs > 32) return;  // each expands in the same way
    for (const study::StudyRun& run : study::expand(study))
      fuzz::require(run.name.find('/') == run.name.npos, "a run's name is a file name");
  });
  return 0;
}
