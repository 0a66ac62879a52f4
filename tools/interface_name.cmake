# Writes the header OUT, which names the symbol of src/interface.cc after the contents of HEADERS (names in a file, one a
# line). It is left alone where the name stays, so that nothing is compiled again.
file(STRINGS ${HEADERS} paths)
foreach(path ${paths})
  file(SHA256 ${path} one)
  string(APPEND all ${one})
endforeach()
string(SHA256 name "${all}")
string(SUBSTRING ${name} 0 16 name)
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define FRAMEJIT_INTERFACE interface_${name}\n")
