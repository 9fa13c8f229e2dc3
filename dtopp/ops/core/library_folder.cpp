#include "dtopp/ops/core/library_folder.h"

#include <dlfcn.h>

namespace dtopp::ops {

std::filesystem::path ops_library_folder() {
  static const char here = 0;
  Dl_info info{};
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::absolute(info.dli_fname).parent_path();
}

}  // namespace dtopp::ops
