"""A local web page that shows how runs are going. It only reads."""
