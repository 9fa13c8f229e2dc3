// Holds the files of dtopp/report/page/, which the build embeds in the program.
#pragma once

#include <string_view>

namespace dtopp::report {
extern const std::string_view kPageScript;  // all *.js files, concatenated
extern const std::string_view kPageStyle;   // report.css

}  // namespace dtopp::report
