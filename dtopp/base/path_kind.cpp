#include "dtopp/base/path_kind.h"

#include <system_error>

#include "dtopp/base/files.h"

namespace dtopp {

PathKind path_kind(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  switch (status.type()) {
    case std::filesystem::file_type::not_found:
      return PathKind::kNothing;
    case std::filesystem::file_type::regular:
      return PathKind::kFile;
    case std::filesystem::file_type::directory:
      return PathKind::kDirectory;
    case std::filesystem::file_type::none:
      throw file_error("read its status", path, error.value());
    default:
      return PathKind::kOther;
  }
}

bool is_there(const std::filesystem::path& path) {
  std::error_code unused;
  return std::filesystem::exists(std::filesystem::symlink_status(path, unused));
}

}  // namespace dtopp
