// Holds the files of the playground page, which the build embeds in the program.
#pragma once

#include <string_view>

namespace dtopp::serve {

extern const std::string_view kPlaygroundBody, kPlaygroundScript, kPlaygroundStyle;
extern const std::string_view kReportStyle;  // dtopp/report/page/report.css

}  // namespace dtopp::serve
