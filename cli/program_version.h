// Which program this is, for ranks that must all be the same one.
#pragma once

#include <string>

namespace dtopp::cli {

// "0.1.0, build 1b2c…": the version and a checksum of the executable and dtopp's libraries.
std::string program_version();

}  // namespace dtopp::cli
