-- Run once, by PostgreSQL's own image, when its volume is new: a database for each server.
CREATE DATABASE prefect;
CREATE DATABASE mlflow;
