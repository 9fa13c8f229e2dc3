// Identifies the program's build, so that ranks can check that all of them run the same one.
#pragma once

#include <string>

namespace dtopp::cli {

// Returns, for example, "0.1.0, build 1b2c…": the version and a checksum of the executable and dtopp's
// libraries.
std::string program_version();

}  // namespace dtopp::cli
