#!/bin/sh
# The passwords of a whole composition or cluster, made on its first start; safe to repeat.
#
#   infra/first-start.sh /credentials
#
# Each reader has its own folder below that one, a volume of its own in the composition, and cannot
# see the other passwords: docs/deploying.md. A start that was interrupted used none of them: its
# files are overwritten.
set -eu
folder=$1
mark=$folder/servers/complete # written last
if [ -e "$mark" ]; then
    echo 'passwords are there'
    exit
fi

# No value has a character that a shell, docker or kubectl would want quoted.
password() { # of so many random bytes
    head -c "$1" /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n'
}

# PostgreSQL and the S3 server run as users of their own images and read their files too. Only the
# container that mounts a volume sees them; outside of volumes the folder is its owner's.
keep() {
    rm -f "$folder/$1"
    cat > "$folder/$1"
    chmod 444 "$folder/$1"
}

[ -d "$folder" ] || mkdir -m 700 -p "$folder"
mkdir -p "$folder/clients" "$folder/servers" "$folder/postgres" "$folder/s3"
people=$(password 24) database=$(password 24) ray=$(password 24)
secret=$(password 30) key=$(head -c 10 /dev/urandom | od -An -tx1 | tr -d ' \n')
for each in "$people" "$database" "$ray" "$secret" "$key"; do
    [ ${#each} -ge 20 ]
done
postgres=bertsmith:$database@postgres:5432

keep clients/environment << CLIENTS
PREFECT_API_AUTH_STRING=bertsmith:$people
MLFLOW_TRACKING_USERNAME=bertsmith
MLFLOW_TRACKING_PASSWORD=$people
AWS_ACCESS_KEY_ID=$key
AWS_SECRET_ACCESS_KEY=$secret
RAY_AUTH_TOKEN=$ray
CLIENTS
keep servers/environment << SERVERS
PREFECT_SERVER_API_AUTH_STRING=bertsmith:$people
PREFECT_SERVER_DATABASE_CONNECTION_URL=postgresql+asyncpg://$postgres/prefect
BERTSMITH_MLFLOW_LOGIN=http://bertsmith:$people@mlflow:5000
MLFLOW_BACKEND_STORE_URI=postgresql://$postgres/mlflow
AWS_ACCESS_KEY_ID=$key
AWS_SECRET_ACCESS_KEY=$secret
SERVERS
printf %s "$database" | keep postgres/password
keep s3/identities.json << IDENTITIES
{"identities": [{"name": "bertsmith", "actions": ["Admin"],
  "credentials": [{"accessKey": "$key", "secretKey": "$secret"}]}]}
IDENTITIES
touch "$mark"
echo 'passwords made'
