# Writes a source file that defines each constant of a header, a std::string_view, as the concatenated text of
# its files:
#   cmake -DOUTPUT=x.cpp -DHEADER=x.h "-DCONSTANTS=kA;kB" "-DkA=a.js|b.js" -DkB=c.css -P EmbedFiles.cmake
# A literal of more than 64 KiB is not portable. Each file becomes its own literal, and the compiler joins
# them.
set(definitions "")
foreach(constant ${CONSTANTS})
  set(text "")
  string(REPLACE "|" ";" files "${${constant}}")
  foreach(file ${files})
    file(READ "${file}" content)
    string(APPEND text "R\"file(${content})file\"\n")
  endforeach()
  string(APPEND definitions "const std::string_view ${constant} =\n${text};\n\n")
endforeach()
string(REGEX REPLACE "^dtopp/([a-z_]+)/.*" "dtopp::\\1" NAMESPACE "${HEADER}")
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n${definitions}}  // namespace ${NAMESPACE}\n")
