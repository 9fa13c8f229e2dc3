#include "cli/program_version.h"

#include <filesystem>
#include <span>
#include <vector>

#include <link.h>

#include "dtopp/base/hash.h"

namespace dtopp::cli {
namespace {

// dl_iterate_phdr calls this for every loaded file. The executable comes first and has no name.
int add_own_file(dl_phdr_info* info, size_t /*size*/, void* files) {
  const std::filesystem::path path = info->dlpi_name;
  auto& own = *static_cast<std::vector<std::filesystem::path>*>(files);
  if (own.empty()) own.emplace_back("/proc/self/exe");
  if (path.filename().string().starts_with("libdtopp_")) own.push_back(path);
  return 0;
}

}  // namespace

std::string program_version() {
  std::vector<std::filesystem::path> files;
  ::dl_iterate_phdr(add_own_file, &files);
  std::string hashes;
  for (const std::filesystem::path& file : files) hashes += hash_file(file);
  return DTOPP_VERSION ", build " + hash_bytes(std::as_bytes(std::span(hashes))).substr(0, 12);
}

}  // namespace dtopp::cli
