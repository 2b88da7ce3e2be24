"""What a Spark session needs around it: Java, its class archive, Python workers, signals."""
