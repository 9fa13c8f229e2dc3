# cmake -DOUTPUT=x.cpp -DHEADER=x.h "-DCONSTANTS=kA;kB" "-DkA=a.js;b.js" -DkB=c.css -P EmbedFiles.cmake: a file that
# defines each constant of the header, a std::string_view, as the text of its files, one after another.
# A literal of more than 64 KiB is no portable one; each file is its own and they are joined by the compiler.
set(definitions "")
foreach(constant ${CONSTANTS})
  set(text "")
  foreach(file ${${constant}})
    file(READ "${file}" content)
    string(APPEND text "R\"file(${content})file\"\n")
  endforeach()
  string(APPEND definitions "const std::string_view ${constant} =\n${text};\n\n")
endforeach()
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"\n\nnamespace dtopp {\n\n${definitions}}  // namespace dtopp\n")
