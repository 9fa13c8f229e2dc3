// A checkpoint whose manifest lists its files: state.json, config.yaml, an index of tensors and a safetensors
// file, parted by NUL. A tensor has the bytes of its shape.
#include "dtopp/checkpoint/checkpoint.h"

#include "dtopp/checkpoint/tensor_files.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;
using namespace dtopp::checkpoint;

static void read(CheckpointUse use) {
  const Checkpoint checkpoint(fuzz::scratch(), use, [](const auto&, const auto&) {});
  fuzz::accepts([&] { checkpoint.config(); });
  for (const TensorView& tensor : checkpoint.router())
    fuzz::require(checkpoint.router().size() > 0 && !tensor.dtype.empty(),
                  "a tensor of the router has a type");
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {2}, {1, 2}}) {
    const uint64_t bytes = shape.empty() ? 4 : 8;
    fuzz::accepts([&] {
      fuzz::require(checkpoint.parameter("a", shape).size() == bytes, "a parameter has its bytes");
    });
    fuzz::accepts(
        [&] { fuzz::require(checkpoint.ema("a", shape).size() == bytes, "an average has its bytes"); });
    if (use == CheckpointUse::kTraining)
      fuzz::accepts(
          [&] { fuzz::require(checkpoint.slot("a", shape).size() == bytes, "a moment has its bytes"); });
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t layout = input.choice(16);
  Manifest manifest{kCheckpointFormat, "", {}};
  const auto add = [&](const std::string& name, const std::string& bytes) {
    fuzz::write_scratch(name.c_str(), bytes);
    manifest.files[name].size = bytes.size();
  };
  add(kStateFile, input.part());
  add(kConfigFile, input.part());
  const std::string index = input.part(), tensors = input.rest();
  const bool in_parts = (layout & 1) != 0;
  add(in_parts ? index_file(kModel) : whole_file(kModel), in_parts ? index : tensors);
  if (in_parts) add(part_file(kModel, 1, 1), tensors);
  if ((layout & 2) != 0) add(whole_file(kOptimizer), tensors);
  if ((layout & 4) != 0) add(whole_file(kEma), tensors);
  if ((layout & 8) != 0) add(kRouterFile, tensors);
  fuzz::write_scratch(kManifestName, format_manifest(manifest));
  for (const CheckpointUse use : {CheckpointUse::kTraining, CheckpointUse::kInference})
    fuzz::accepts([&] { read(use); });
  return 0;
}
