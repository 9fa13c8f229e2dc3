// study.json and curves.json of a report, parted by NUL.
#include "dtopp/study/study_file.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto file = fuzz::write_scratch("study.json", input.part());
  const auto curves = fuzz::write_scratch("curves.json", input.part());
  fuzz::require(study::is_study(fuzz::scratch()), "a folder with study.json is a study");
  fuzz::accepts([&] { study::read_study_file(fuzz::scratch()); });
  if (input.choice(2) != 0) std::filesystem::remove(curves);
  fuzz::accepts([&] {
    for (const study::StudyCurve& curve : study::read_study_file(file).curves)
      fuzz::require(curve.x.size() == curve.mean.size() && curve.x.size() == curve.half_width.size(),
                    "a curve has as many values as places");
  });
  return 0;
}
