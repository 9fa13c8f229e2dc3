// config.json of transformers. An accepted one gives a configuration that prints and reads back equal.
#include "dtopp/convert/huggingface_config.h"

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz::write_scratch("config.json", fuzz::Input(data, size).rest());
  fuzz::accepts([&] {
    const convert::ImportedConfig imported = convert::read_huggingface_config(file);
    config::validate_values(imported.config);
    const config::RunConfig again = config::parse_run_config(config::to_yaml(imported.config), "printed");
    fuzz::require(config::differing_keys(imported.config, again).empty(),
                  "a printed configuration is the same");
  });
  return 0;
}
