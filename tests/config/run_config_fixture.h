// Loads run configurations from complete small files and overrides.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "dtopp/config/config.h"
#include "dtopp/config/run_config.h"
#include "tests/config/model_sizes.h"
#include "tests/config/temporary_files.h"

namespace dtopp::config {

inline const std::string kImages = "model.type=diffusion_transformer";
inline const char* const kMinimal = "data: {train: [t]}\noutput: runs/x\n";

class RunConfigTest : public TemporaryFiles {
 protected:
  RunConfig load(const std::vector<std::string>& overrides) const {
    const bool images = std::ranges::count(overrides, kImages) > 0;
    return load_run_config(write("run.yaml", (images ? kImageModelYaml : kModelYaml) + kMinimal), overrides);
  }
  std::string error(const std::vector<std::string>& overrides) const {
    return usage_error([&] { load(overrides); });
  }
};

}  // namespace dtopp::config
