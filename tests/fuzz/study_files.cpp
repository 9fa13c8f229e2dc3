// study.json and curves.json of a report, parted by NUL.
#include "dtopp/study/study_file.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  fuzz::write_scratch("study.json", input.part());
  fuzz::write_scratch("curves.json", input.empty() ? R"({"curves": []})" : input.part());
  fuzz::accepts([&] {
    for (const study::StudyCurve& curve : study::read_study_file(fuzz::scratch()).curves)
      fuzz::require(curve.x.size() == curve.mean.size() && curve.x.size() == curve.half_width.size(),
                    "a curve has as many values as places");
  });
  return 0;
}
