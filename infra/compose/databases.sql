-- Run once, by PostgreSQL's own image, when its volume is new: a database for each server.
CREATE DATABASE prefect ENCODING 'UTF8' TEMPLATE template0;
CREATE DATABASE mlflow ENCODING 'UTF8' TEMPLATE template0;
