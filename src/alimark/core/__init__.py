"""What marks texts and finds marks: keys, text, embedding, language models, generation, detection and AliMark itself."""
