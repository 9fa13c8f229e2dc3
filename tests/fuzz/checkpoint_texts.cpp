// The texts in a checkpoint: state.json, an index of tensors, images.json. What was printed parses to the
// same value.
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/data/images/image_data.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void read_state(const std::string& text) {
  const auto state = checkpoint::parse_training_state(text, "state.json");
  fuzz::require(checkpoint::parse_training_state(format_training_state(state), "state.json") == state,
                "a printed state is the same");
}

static void read_index(const std::string& text) {
  checkpoint::read_tensor_index(fuzz::write_scratch("index.json", text));
}

static void read_layout(const std::string& text) {
  const auto layout = data::parse_image_layout(text, "images.json");
  fuzz::require(layout.shape.elements() >= 1, "a picture has numbers");
  const std::string printed = data::format_image_layout(layout);
  fuzz::require(data::format_image_layout(data::parse_image_layout(printed, "images.json")) == printed,
                "a printed layout is the same");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const auto read = std::array{read_state, read_index, read_layout}[input.choice(3)];
  fuzz::accepts([&] { read(input.rest()); });
  return 0;
}
