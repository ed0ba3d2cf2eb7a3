"""Reads the text of documents: web pages, PDF, Word, OpenDocument, e-books, RTF, Markdown, e-mail and plain text."""
