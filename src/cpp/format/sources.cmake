target_sources(lucebox_engine PRIVATE
  format/gguf.cpp
  format/gguf_metadata.cpp
  format/gguf_value.cpp
  format/json.cpp
  format/mapped_file.cpp
  format/model_file.cpp
  format/safetensors.cpp
  format/tensor_table.cpp
  format/text.cpp)
