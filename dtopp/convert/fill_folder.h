// Where a conversion writes.
#pragma once

#include <filesystem>
#include <functional>

namespace dtopp {

// Makes `folder` of what `fill` writes into the directory it is given: it appears complete or not at all.
// UsageError where it is there and not an empty folder.
void fill_folder(const std::filesystem::path& folder,
                 const std::function<void(const std::filesystem::path&)>& fill);

}  // namespace dtopp
