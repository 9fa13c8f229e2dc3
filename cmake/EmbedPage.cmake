# cmake -DOUTPUT=page_files.cpp -DSCRIPTS=a.js;b.js -DSTYLE=report.css -P EmbedPage.cmake: the files as string literals.
# A literal of more than 64 KiB is no portable one; each file is its own and they are joined by the compiler.
function(literal result)
  set(text "")
  foreach(file ${ARGN})
    file(READ "${file}" content)
    string(APPEND text "R\"page(${content})page\"\n")
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

literal(script ${SCRIPTS})
literal(style ${STYLE})
file(WRITE "${OUTPUT}" "#include \"dtopp/report/page_files.h\"\n\nnamespace dtopp {\n\nconst std::string_view kPageScript =\n${script};\n"
  "const std::string_view kPageStyle =\n${style};\n\n}  // namespace dtopp\n")
