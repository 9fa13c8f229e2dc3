// Locates libdtopp_ops.so; libdtopp_cuda.so lies beside it.
#pragma once

#include <filesystem>

namespace dtopp::ops {

// Returns the folder of the library that holds this function; empty if the loader does not report it.
std::filesystem::path ops_library_folder();

}  // namespace dtopp::ops
