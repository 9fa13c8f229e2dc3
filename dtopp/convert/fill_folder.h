// Fills the output folder of a conversion.
#pragma once

#include <filesystem>
#include <functional>

namespace dtopp::convert {

// Creates `folder` from the files that `fill` writes into the directory passed to it. The folder appears
// complete or not at all. Throws UsageError if `folder` exists and is not an empty folder.
void fill_folder(const std::filesystem::path& folder,
                 const std::function<void(const std::filesystem::path&)>& fill);

}  // namespace dtopp::convert
